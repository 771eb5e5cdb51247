"""Expert choices of a row that no precision decides: from there on, the row's numbers say nothing of correctness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SAFETY = 8.0
"""A choice is decided where its margin exceeds so many times what the scores move in the run's own precision."""


class _TopKWatcher(TorchFunctionMode):
    """Keeps the scores of every top-k over one candidate list a token: a router's, or that of its groups."""

    def __init__(self, tokens: int, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self._tokens = tokens
        self._kept = kept

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.topk, torch.Tensor.topk):
            scores, chosen = args[0], out[1]
            if scores.shape[-1] > chosen.shape[-1] and scores.numel() == self._tokens * scores.shape[-1]:
                ordered = scores.reshape(self._tokens, -1).double().sort(dim=-1, descending=True).values
                k = chosen.shape[-1]
                # (tokens, 2): the last score that was taken, and the first that was not
                self._kept.append(ordered[:, k - 1 : k + 1])
        return out


@contextmanager
def watch_choices(tokens: int) -> Iterator[list[torch.Tensor]]:
    """Yields the list to which each choice within adds (tokens, 2) float64: the scores on both sides of its cut."""
    kept: list[torch.Tensor] = []
    with _TopKWatcher(tokens, kept):
        yield kept


def ambiguous_from(exact: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> int:
    """The first token whose choice could fall otherwise in the run's precision; the number of tokens where none.

    `exact` and `own` hold the cuts of the same choices, in float64 and in the run's own precision.
    """
    first = exact[0].shape[0] if exact else 2**31
    for sharp, noisy in zip(exact, own, strict=True):
        margin = sharp[:, 0] - sharp[:, 1]
        noise = (sharp - noisy).abs().max(dim=-1).values
        undecided = (margin <= SAFETY * noise).nonzero()
        if undecided.numel():
            first = min(first, int(undecided[0]))
    return first
