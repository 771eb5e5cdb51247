"""A curve in memory, and what can be done to it in float64 before any of its points is left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Steps: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """`steps`: (n,) int64, rising; `values`: (n,) float64, non-finite ones among them."""

    steps: Steps
    values: Values

    @property
    def nonfinite(self) -> Steps:
        """The steps at which the value is no number."""
        return self.steps[~np.isfinite(self.values)]

    @property
    def last(self) -> float | None:
        return float(self.values[-1]) if self.values.size else None

    @property
    def smallest(self) -> float | None:
        finite = self.values[np.isfinite(self.values)]
        return float(finite.min()) if finite.size else None

    @property
    def largest(self) -> float | None:
        finite = self.values[np.isfinite(self.values)]
        return float(finite.max()) if finite.size else None


def subtract(curve: Curve, base: Curve) -> Curve:
    """`curve − base` at every step that both have; not finite where one of them is not."""
    steps, ours, theirs = np.intersect1d(curve.steps, base.steps, assume_unique=True, return_indices=True)
    with np.errstate(invalid="ignore"):
        return Curve(steps, curve.values[ours] - base.values[theirs])


def smooth(curve: Curve, weight: float) -> Curve:
    """The exponential moving mean y_t = w·y_{t−1} + (1 − w)·x_t, divided by 1 − wᵗ so that it does not start at 0.

    `weight`: w in [0, 1). A step whose value is no number is not averaged in, and has none itself.
    """
    smoothed: list[float] = []
    rest = 1.0 - weight
    mean, mass = 0.0, 0.0
    for value in curve.values.tolist():
        if math.isfinite(value):
            mean = weight * mean + rest * value
            mass = weight * mass + rest
            smoothed.append(mean / mass)
        else:
            smoothed.append(math.nan)
    return Curve(curve.steps, np.array(smoothed, dtype=np.float64))


def place_along(curve: Curve, axis: Curve | None) -> Values | None:
    """Where each point of `curve` lies on another axis (tokens, samples, seconds); NaN where the axis has no such
    step, None where there is no axis.
    """
    if axis is None or not axis.steps.size:
        return None
    found = np.searchsorted(axis.steps, curve.steps).clip(max=axis.steps.size - 1)
    return np.where(axis.steps[found] == curve.steps, axis.values[found], np.nan)
