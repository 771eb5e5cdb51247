"""Supervised fine-tuning: the mean of −log p over the counted tokens of the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from checks.references.objectives.objective import Computed


@dataclass(frozen=True)
class TokenMean:
    """Σ of the token losses over `denominator`, the count of the step's targets."""

    denominator: int

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor:
        parts = [one.token_losses.sum() / self.denominator for one in group]
        scalar = parts[0]
        for part in parts[1:]:
            scalar = scalar + part
        return scalar
