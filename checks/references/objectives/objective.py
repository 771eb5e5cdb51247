"""What every objective does: turn the token losses of the forwards of a back-propagated scalar into that scalar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Computed:
    """One forward: `token_losses`, (b, s) −log p where a target counts, else 0; `rows`: (micro-batch, row) of each."""

    token_losses: torch.Tensor
    rows: tuple[tuple[int, int], ...]


class Objective(Protocol):
    """The scalar of a group of forwards, which hold one micro-batch or more, each of them whole.

    Over the groups of a step the scalars add up to the step's objective.
    """

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor: ...
