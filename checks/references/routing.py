"""Expert choices replayed and judged apart: a top-k may flip between precisions where two scores nearly tie.

The reference computes with the experts that the run chose, so that one flipped tie is not read as a wrong gradient;
whether the choice was right is a claim of its own: the float64 margin by which a chosen expert lost must lie within
the score's own noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from checks.captures.capture import Capture
from checks.references.batch import MicroBatch
from checks.references.step import ForwardBatch

Choices = Mapping[str, tuple[torch.Tensor, ...]]
"""router path → one (B, S, k) int64 a micro-batch"""


@dataclass(frozen=True)
class ChoiceError:
    """One router's choices against the float64 scores: how many tokens chose otherwise, and by what margin at most."""

    router: str
    tokens: int
    differing: int
    margin: float
    floor: float


def read_choices(capture: Capture, step: int, micro_batches: Sequence[MicroBatch]) -> Choices:
    """The recorded choices laid along (B, S); routers whose record cannot be laid so are left out."""
    found: dict[str, list[torch.Tensor]] = {}
    for index, micro in enumerate(micro_batches):
        for key, record in capture.micro_batch_tensors(step, "router", index).items():
            path, _, kind = key.rpartition("/")
            indices = record.read("full") if kind == "indices" else None
            if indices is not None and indices.numel() % micro.input_ids.numel() == 0:
                found.setdefault(path, []).append(indices.long().reshape(*micro.input_ids.shape, -1))
    return {path: tuple(parts) for path, parts in found.items() if len(parts) == len(micro_batches)}


@dataclass
class Replay:
    """Makes a model's routers choose as recorded, and keeps the scores that they would have chosen by.

    `scores`: router → micro-batch → (B, S, E) in the model's dtype, NaN at padding.
    """

    choices: Choices
    micro_batches: Sequence[MicroBatch]
    scores: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _batch: ForwardBatch | None = None
    _handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)

    def attach(self, model: nn.Module) -> None:
        """Hook every router whose choices were recorded."""
        for path in self.choices:
            module = model.get_submodule(path)
            modes: list[_ReplayTopK] = []

            def enter(_module: nn.Module, _args: object, path: str = path, modes: list[_ReplayTopK] = modes) -> None:
                modes.append(_ReplayTopK(self._wanted(path), lambda scores: self._keep(path, scores)))
                modes[-1].__enter__()  # type: ignore[no-untyped-call]

            def leave(_module: nn.Module, _args: object, _out: object, modes: list[_ReplayTopK] = modes) -> None:
                modes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

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

    def _keep(self, path: str, scores: torch.Tensor) -> None:
        assert self._batch is not None
        experts = scores.shape[-1]
        laid = scores.detach().reshape(*self._batch.input_ids.shape, experts)
        kept = self.scores.setdefault(
            path, [torch.full((*m.input_ids.shape, experts), math.nan, dtype=laid.dtype) for m in self.micro_batches]
        )
        for row, piece in enumerate(self._batch.pieces):
            document = piece.document
            length = document.stop - document.start
            kept[piece.micro][document.row, document.start : document.stop] = laid[
                row, piece.offset : piece.offset + length
            ]


class _ReplayTopK(TorchFunctionMode):
    """Answers the top-k of a router with the recorded indices and their own scores; other top-ks pass through."""

    def __init__(self, wanted: torch.Tensor, keep: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.wanted = wanted
        self.keep = keep

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk) or out[1].shape != self.wanted.shape:
            return out
        scores = args[0]
        self.keep(scores)
        indices = torch.where(self.wanted >= 0, self.wanted, out[1])
        return torch.return_types.topk((scores.gather(-1, indices), indices))


def judge_choices(
    choices: Choices,
    exact: Mapping[str, Sequence[torch.Tensor]],
    noisy: Sequence[Mapping[str, Sequence[torch.Tensor]]],
) -> tuple[ChoiceError, ...]:
    """Each router's choices against its float64 scores; the floor is what the scores move in the run's own
    precision.
    """
    return tuple(
        _judge_router(path, recorded, exact[path], [scores[path] for scores in noisy if path in scores])
        for path, recorded in choices.items()
        if path in exact
    )


def _judge_router(
    path: str,
    recorded: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    noisy: Sequence[Sequence[torch.Tensor]],
) -> ChoiceError:
    tokens = differing = 0
    margin = floor = 0.0
    for micro, (chosen, scores) in enumerate(zip(recorded, exact, strict=True)):
        real = ~scores.isnan().any(-1)
        own = scores[real].topk(chosen.shape[-1], dim=-1)
        lost = scores[real].gather(-1, chosen[real]).min(-1).values
        # A chosen expert's score under the smallest of the top k: by so much was another one better.
        gaps = (own.values.min(-1).values - lost).clamp(min=0.0)
        tokens += gaps.numel()
        differing += int((gaps > 0.0).sum())
        margin = max(margin, float(gaps.max()) if gaps.numel() else 0.0)
        for variant in noisy:
            moved = (variant[micro][real].double() - scores[real]).abs()
            finite = moved[moved.isfinite()]
            floor = max(floor, float(finite.max()) if finite.numel() else 0.0)
    return ChoiceError(path, tokens, differing, margin, floor)
