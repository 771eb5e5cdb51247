"""Sparse attention's choice of keys replayed and judged apart, as expert choices are.

An indexer gives each query the k keys of the best scores. Its scores are sums of rectified products, so that many are
exactly 0: which of them are taken depends on the layout of the batch, not only on its precision. The reference attends
to the keys that the run chose, and the choice is a claim of its own.
Source: https://github.com/deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py, Indexer.
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
from checks.references.routing import ChoiceError
from checks.references.step import ForwardBatch

KEYS = "keys"
"""What an indexer chooses, in words and as the field of its record."""

Selections = Mapping[str, tuple[torch.Tensor, ...]]
"""indexer path → one (B, S, k) int64 a micro-batch: the positions, in the row, of the keys of each query"""


def read_selections(capture: Capture, step: int, micro_batches: Sequence[MicroBatch]) -> Selections:
    """The recorded keys of every indexer that recorded each micro-batch's, laid along (B, S)."""
    found: dict[str, list[torch.Tensor]] = {}
    for index, micro in enumerate(micro_batches):
        for key, record in capture.micro_batch_tensors(step, "router", index).items():
            path, _, kind = key.rpartition("/")
            chosen = record.read("full") if kind == KEYS else None
            if chosen is not None and chosen.shape[:2] == micro.input_ids.shape:
                found.setdefault(path, []).append(chosen.long())
    return {path: tuple(parts) for path, parts in found.items() if len(parts) == len(micro_batches)}


@dataclass
class SelectionReplay:
    """Makes a model's indexers choose the keys that were recorded, and keeps the scores that they would choose by.

    `scores`: indexer → micro-batch → (B, S, S) in the model's dtype, query by key: NaN at padding queries, −∞ at keys
    of another document and at later ones. An indexer that does not score every key of its row is left alone.
    """

    selections: Selections
    micro_batches: Sequence[MicroBatch]
    scores: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _batch: ForwardBatch | None = None
    _handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)

    def attach(self, model: nn.Module) -> None:
        """Hook every indexer whose choices were recorded."""
        for path in self.selections:
            module = model.get_submodule(path)
            watchers: list[_TopKScores] = []

            def enter(_module: nn.Module, _args: object, watchers: list[_TopKScores] = watchers) -> None:
                watchers.append(_TopKScores())
                watchers[-1].__enter__()  # type: ignore[no-untyped-call]

            def leave(
                _module: nn.Module,
                _args: object,
                chosen: torch.Tensor,
                path: str = path,
                watchers: list[_TopKScores] = watchers,
            ) -> torch.Tensor:
                watcher = watchers.pop()
                watcher.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                return self._replay(path, chosen, watcher.scores)

            self._handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def detach(self) -> None:
        """Let the indexers choose by themselves again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin(self, batch: ForwardBatch) -> None:
        """Tell which documents the next forward computes."""
        self._batch = batch

    def _replay(self, path: str, chosen: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
        """(b, s, k) keys as recorded, where the model would have chosen `chosen` by its (b, s, s) `scores`."""
        assert self._batch is not None
        rows, length = self._batch.input_ids.shape
        if scores is None or scores.shape != (rows, length, length):
            return chosen
        replayed = chosen.clone()
        kept = self.scores.setdefault(path, [_unknown(micro, scores.dtype) for micro in self.micro_batches])
        for row, piece in enumerate(self._batch.pieces):
            document, start = piece.document, piece.document.start
            span, size = slice(start, document.stop), document.stop - start
            there = slice(piece.offset, piece.offset + size)
            later = torch.ones(size, size, dtype=torch.bool).triu(1)
            kept[piece.micro][document.row, span] = -math.inf
            kept[piece.micro][document.row, span, span] = (
                scores[row, there, there].detach().masked_fill(later, -math.inf)
            )
            recorded = self.selections[path][piece.micro][document.row, span] - start
            own = chosen[row, there].long() - piece.offset
            keys = choose_keys(recorded, own) + piece.offset
            replayed[row, there] = keys.to(chosen.dtype)
        return replayed


def choose_keys(recorded: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """(n, k') keys of a document's n queries: the recorded ones within it, the first of them in all places left over.

    recorded: (n, k), positions from the document's start; own: (n, k'), those of the model itself, which stand where
    the record does not give a query as many keys as it has: then the run looked outside of the document.
    """
    size = recorded.shape[0]
    hits = hit_keys(recorded, size).tril()
    count = hits.sum(-1, keepdim=True)
    ordered = hits.int().argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(own.shape[-1])
    keys = torch.where(places < count, ordered[:, places.clamp(max=size - 1)], ordered[:, :1])
    due = torch.arange(1, size + 1).clamp(max=recorded.shape[-1])[:, None]
    return torch.where(count == due, keys, own)


def hit_keys(chosen: torch.Tensor, keys: int) -> torch.Tensor:
    """(…, keys) bool: which of the positions 0 … keys − 1 are among the chosen (…, k)."""
    there = (chosen >= 0) & (chosen < keys)
    marked = torch.zeros(*chosen.shape[:-1], keys + 1, dtype=torch.bool)
    return marked.scatter(-1, torch.where(there, chosen, keys), True)[..., :keys]


def judge_selections(
    selections: Selections,
    exact: Mapping[str, Sequence[torch.Tensor]],
    noisy: Sequence[Mapping[str, Sequence[torch.Tensor]]],
) -> tuple[ChoiceError, ...]:
    """Each indexer's keys against its float64 scores; the floor is what the scores move in the run's own precision."""
    return tuple(
        _judge_indexer(path, recorded, exact[path], [scores[path] for scores in noisy if path in scores])
        for path, recorded in selections.items()
        if path in exact
    )


def _judge_indexer(
    path: str,
    recorded: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    noisy: Sequence[Sequence[torch.Tensor]],
) -> ChoiceError:
    tokens = differing = 0
    margin = floor = 0.0
    for micro, (chosen, scores) in enumerate(zip(recorded, exact, strict=True)):
        real = ~scores.isnan().any(-1)
        gaps = lost_keys(scores[real], chosen[real])
        tokens += gaps.numel()
        differing += int((gaps > 0.0).sum())
        margin = max(margin, float(gaps.max()) if gaps.numel() else 0.0)
        for variant in noisy:
            moved = (variant[micro][real].double() - scores[real]).abs()
            finite = moved[moved.isfinite()]
            floor = max(floor, float(finite.max()) if finite.numel() else 0.0)
    return ChoiceError(path, tokens, differing, margin, floor, KEYS)


def lost_keys(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """(n,) by how much a key left out was better than a chosen one; 0 where the best were chosen.

    scores: (n, S), −∞ at keys that a query must not see; chosen: (n, k). A query that has fewer than k keys chose all
    of them; one that has them and chose a key that it must not see lost by ∞.
    """
    if scores.numel() == 0:
        return torch.zeros(scores.shape[0], dtype=scores.dtype)
    last = scores.isfinite().sum(-1, keepdim=True).clamp(min=1, max=chosen.shape[-1]) - 1
    best = scores.sort(dim=-1, descending=True).values.gather(-1, last)
    own = scores.masked_fill(~hit_keys(chosen, scores.shape[-1]), -math.inf)
    worst = own.sort(dim=-1, descending=True).values.gather(-1, last)
    return (best - worst).squeeze(-1)


class _TopKScores(TorchFunctionMode):
    """Keeps what the last top-k within was taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: torch.Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.topk, torch.Tensor.topk):
            self.scores = args[0]
        return func(*args, **(kwargs or {}))


def _unknown(micro: MicroBatch, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((*micro.input_ids.shape, micro.input_ids.shape[1]), math.nan, dtype=dtype)
