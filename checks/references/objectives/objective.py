"""What every objective does: turn the token losses of the forwards of a back-propagated scalar into that scalar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Span:
    """Positions `start` to `stop` of a micro-batch's row, which a forward has from column `offset` on."""

    offset: int
    start: int
    stop: int


@dataclass(frozen=True)
class Computed:
    """One forward: `token_losses`, (b, s) −log p where a target counts, else 0; `rows`: (micro-batch, row) of each;
    `spans`: which positions of it, for objectives that tell tokens apart.
    """

    token_losses: torch.Tensor
    rows: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...] = ()

    def lay(self) -> Iterator[tuple[tuple[int, int], Span, torch.Tensor]]:
        """(micro-batch, row), span, and the token losses of the span, (stop − start,)."""
        for place, span, losses in zip(self.rows, self.spans, self.token_losses, strict=True):
            yield place, span, losses[span.offset : span.offset + span.stop - span.start]


class Objective(Protocol):
    """The scalar of a group of forwards, which hold one micro-batch or more, each of them whole.

    Over the groups of a step the scalars add up to the step's objective.
    """

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor: ...
