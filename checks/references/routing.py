"""Expert choices replayed and judged apart: a top-k may flip between precisions where two scores nearly tie.

The reference computes with the experts that the run chose, so that one flipped tie is not read as a wrong gradient;
whether the choice was right is a claim of its own: the float64 margin by which a chosen expert lost must lie within
the score's own noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from checks.captures.capture import Capture
from checks.references.batch import MicroBatch
from checks.references.step import ForwardBatch

GROUP_BEST = 2
"""A group of experts is scored by the sum of its best two (https://github.com/deepseek-ai/DeepSeek-V3, Gate)."""

Choices = Mapping[str, tuple[torch.Tensor, ...]]
"""router path → one (B, S, k) int64 a micro-batch"""


@dataclass(frozen=True)
class ChoiceError:
    """One router's choices against the float64 scores: how many tokens chose otherwise, and by what margin at most.

    `what`: experts, or the keys of sparse attention, whose router is the indexer.
    """

    router: str
    tokens: int
    differing: int
    margin: float
    floor: float
    what: str = "experts"


def read_choices(capture: Capture, step: int, micro_batches: Sequence[MicroBatch]) -> Choices:
    """The recorded choices laid along (B, S); routers whose record cannot be laid so are left out."""
    laid = lay_records(capture, step, micro_batches, kind="indices")
    return {path: tuple(part.long() for part in parts) for path, parts in laid.items()}


def lay_records(
    capture: Capture, step: int, micro_batches: Sequence[MicroBatch], *, kind: str
) -> dict[str, tuple[torch.Tensor, ...]]:
    """router → (B, S, k) a micro-batch of its records of one kind, of those that have it in every micro-batch."""
    found: dict[str, list[torch.Tensor]] = {}
    for index, micro in enumerate(micro_batches):
        for key, record in capture.micro_batch_tensors(step, "router", index).items():
            path, _, field_ = key.rpartition("/")
            values = record.read("full") if field_ == kind else None
            if values is not None and values.numel() % micro.input_ids.numel() == 0:
                found.setdefault(path, []).append(values.reshape(*micro.input_ids.shape, -1))
    return {path: tuple(parts) for path, parts in found.items() if len(parts) == len(micro_batches)}


@dataclass
class Replay:
    """Makes a model's routers choose as recorded, and keeps the scores that they would have chosen by.

    `scores`: router → micro-batch → (B, S, E) in the model's dtype, NaN at padding, −∞ outside a token's groups;
    `groups`: the same before that, (B, S, groups, experts a group), for routers that limit their choice to groups.
    `weights`: (B, S, k), what the router gives to the experts chosen, in the order of `choices`.
    """

    choices: Choices
    micro_batches: Sequence[MicroBatch]
    scores: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    groups: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    weights: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _batch: ForwardBatch | None = None
    _handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)

    def attach(self, model: nn.Module) -> None:
        """Hook every router whose choices were recorded."""
        for path in self.choices:
            module = model.get_submodule(path)
            modes: list[_ReplayTopK] = []

            def enter(_module: nn.Module, _args: object, path: str = path, modes: list[_ReplayTopK] = modes) -> None:
                keep, keep_groups = partial(self._keep, self.scores, path), partial(self._keep, self.groups, path)
                experts = count_experts(_module)
                modes.append(_ReplayTopK(self._wanted(path), keep, keep_groups=keep_groups, experts=experts))
                modes[-1].__enter__()  # type: ignore[no-untyped-call]

            def leave(
                _module: nn.Module, _args: object, out: object, path: str = path, modes: list[_ReplayTopK] = modes
            ) -> None:
                mode = modes.pop()
                mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                weights = _find_weights(out, mode.wanted.shape)
                if weights is not None:
                    self._keep(self.weights, path, weights)

            self._handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def detach(self) -> None:
        """Let the routers choose by themselves again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(self, batch: ForwardBatch) -> None:
        """Tell which documents the next forward computes."""
        self._batch = batch

    def _wanted(self, path: str) -> torch.Tensor:
        """(b · s, k) recorded choices in the forward's layout, −1 at padding."""
        assert self._batch is not None
        k = self.choices[path][0].shape[-1]
        wanted = torch.full((*self._batch.input_ids.shape, k), -1, dtype=torch.int64)
        for row, piece in enumerate(self._batch.pieces):
            document = piece.document
            part = self.choices[path][piece.micro][document.row, document.start : document.stop]
            wanted[row, piece.offset : piece.offset + part.shape[0]] = part
        return wanted.reshape(-1, k)

    def _keep(self, store: dict[str, list[torch.Tensor]], path: str, scores: torch.Tensor) -> None:
        """Lay a forward's scores (b · s, …) along the micro-batches."""
        assert self._batch is not None
        inner = scores.shape[1:]
        laid = scores.detach().reshape(*self._batch.input_ids.shape, *inner)
        kept = store.setdefault(
            path, [torch.full((*m.input_ids.shape, *inner), math.nan, dtype=laid.dtype) for m in self.micro_batches]
        )
        for row, piece in enumerate(self._batch.pieces):
            document = piece.document
            length = document.stop - document.start
            kept[piece.micro][document.row, document.start : document.stop] = laid[
                row, piece.offset : piece.offset + length
            ]


def _find_weights(output: object, shape: torch.Size) -> torch.Tensor | None:
    """Of what a router gives, the weights of the experts chosen."""
    parts = output if isinstance(output, tuple) else ()
    return next((p for p in parts if isinstance(p, torch.Tensor) and p.is_floating_point() and p.shape == shape), None)


def count_experts(router: nn.Module) -> int | None:
    """How many experts a router scores: the rows of its weight; None where it has none."""
    weight = getattr(router, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, torch.Tensor) else None


class _ReplayTopK(TorchFunctionMode):
    """Answers the top-k of a router with the recorded indices and their own scores; other top-ks pass through.

    A router that limits its choice to groups takes a top-k of groups too, which may be as many as the experts chosen:
    the experts' is the one over all of them.
    """

    def __init__(
        self,
        wanted: torch.Tensor,
        keep: Callable[[torch.Tensor], None],
        *,
        keep_groups: Callable[[torch.Tensor], None],
        experts: int | None,
    ) -> None:
        super().__init__()
        self.wanted = wanted
        self.keep = keep
        self.keep_groups = keep_groups
        self.experts = experts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return out
        scores = args[0]
        if scores.dim() == 3 and scores.shape[1] * scores.shape[2] == self.experts and out[1].shape[-1] == GROUP_BEST:
            self.keep_groups(scores)
        if out[1].shape != self.wanted.shape or self.experts not in (None, scores.shape[-1]):
            return out
        self.keep(scores)
        indices = torch.where(self.wanted >= 0, self.wanted, out[1])
        return torch.return_types.topk((scores.gather(-1, indices), indices))


def judge_choices(
    choices: Choices,
    exact: Mapping[str, Sequence[torch.Tensor]],
    noisy: Sequence[Mapping[str, Sequence[torch.Tensor]]],
    *,
    groups: Mapping[str, Sequence[torch.Tensor]],
) -> tuple[ChoiceError, ...]:
    """Each router's choices against its float64 scores, `groups` those before the limit to groups; the floor is what
    the scores move in the run's own precision.
    """
    return tuple(
        _judge_router(
            path, recorded, exact[path], [scores[path] for scores in noisy if path in scores], groups.get(path)
        )
        for path, recorded in choices.items()
        if path in exact
    )


def _judge_router(
    path: str,
    recorded: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    noisy: Sequence[Sequence[torch.Tensor]],
    groups: Sequence[torch.Tensor] | None,
) -> ChoiceError:
    tokens = differing = 0
    margin = floor = 0.0
    for micro, (chosen, scores) in enumerate(zip(recorded, exact, strict=True)):
        real = ~scores.isnan().any(-1)
        gaps = lost_margins(scores[real], chosen[real], None if groups is None else groups[micro][real])
        tokens += gaps.numel()
        differing += int((gaps > 0.0).sum())
        margin = max(margin, float(gaps.max()) if gaps.numel() else 0.0)
        for variant in noisy:
            moved = (variant[micro][real].double() - scores[real]).abs()
            finite = moved[moved.isfinite()]
            floor = max(floor, float(finite.max()) if finite.numel() else 0.0)
    return ChoiceError(path, tokens, differing, margin, floor)


def lost_margins(scores: torch.Tensor, chosen: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """By how much another expert was better than a chosen one, a token each; 0 where the best were chosen.

    scores: (n, E), −∞ outside the groups that the scores choose; chosen: (n, k); groups: (n, G, E / G), the scores of
    all groups. Where a token chose in a group that its scores do not, two margins stand for it: half of that by which
    the group lost, which is the sum of two scores, and the experts' within the groups that it chose in.
    """
    if groups is None:
        return _expert_margins(scores, chosen)
    kept = scores.view_as(groups).isfinite().any(-1)
    hit = torch.zeros_like(kept).scatter(-1, chosen // groups.shape[-1], True)
    sums = groups.topk(GROUP_BEST, dim=-1).values.sum(-1)
    weakest = sums.masked_fill(~kept, math.inf).min(-1, keepdim=True).values
    lost = (weakest - sums).masked_fill(~hit | kept, 0.0).max(-1).values / GROUP_BEST
    flipped = (hit & ~kept).any(-1, keepdim=True)
    allowed = torch.where(flipped, hit, kept)
    within = groups.masked_fill(~allowed[..., None], -math.inf).flatten(-2)
    return torch.maximum(lost, _expert_margins(within, chosen))


def _expert_margins(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    own = scores.topk(chosen.shape[-1], dim=-1).values.min(-1).values
    return (own - scores.gather(-1, chosen).min(-1).values).clamp(min=0.0)
