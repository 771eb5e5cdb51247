"""A rate with its exact 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

TAIL = 0.025
BISECTIONS = 60
"""Halvings of [0, 1]: more than a float64 has digits."""


@dataclass(frozen=True)
class Rate:
    """`hits` of `total`."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson (1934, doi:10.1093/biomet/26.4.404): exact, so never too narrow."""
        if not self.total:
            return 0.0, 1.0
        low = 0.0 if self.hits == 0 else _solve(lambda p: 1.0 - _at_most(self.hits - 1, self.total, p), TAIL)
        high = 1.0 if self.hits == self.total else _solve(lambda p: -_at_most(self.hits, self.total, p), -TAIL)
        return low, high

    def __str__(self) -> str:
        if not self.total:
            return "none"
        low, high = self.interval
        return f"{self.hits}/{self.total} ({low:.1%} to {high:.1%})"


def _at_most(hits: int, total: int, p: float) -> float:
    """P(X ≤ hits) for X binomial."""
    return math.fsum(math.comb(total, k) * p**k * (1.0 - p) ** (total - k) for k in range(hits + 1))


def _solve(increasing: Callable[[float], float], value: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if increasing(middle) < value else (low, middle)
    return (low + high) / 2.0
