"""Fewer points without hiding one: minimum and maximum of every stretch, and each step that is no number.

Sampling every n-th point, or averaging, loses the single-step spikes that a training curve is looked at for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plumbline_web.curves.series import Curve, Steps

MOST_POINTS = 2000
"""Of one drawn trace: more than a chart has pixels across."""


@dataclass(frozen=True)
class Sampled:
    """What is drawn of a curve. `of`: points of the whole; `markers`: steps that are no number, all or the first ones.

    `nonfinite` counts them all.
    """

    curve: Curve
    of: int
    markers: Steps
    nonfinite: int

    @property
    def is_whole(self) -> bool:
        return self.curve.steps.size == self.of

    @property
    def note(self) -> str:
        """What the chart says of itself: "2,000 of 100,000 points, extremes kept"."""
        drawn = self.curve.steps.size
        points = f"{self.of:,} points" if self.is_whole else f"{drawn:,} of {self.of:,} points, extremes kept"
        if not self.nonfinite:
            return points
        marked = "" if self.markers.size == self.nonfinite else f", {self.markers.size:,} of them marked"
        return f"{points}; {self.nonfinite:,} not finite{marked}"


def downsample(curve: Curve, *, most: int = MOST_POINTS) -> Sampled:
    """At most `most` points of a curve: the first, the last, and each stretch's extremes, in their order.

    A stretch that holds steps that are no number keeps one of them, as the gap in the line.
    """
    nonfinite = curve.nonfinite
    kept = np.arange(curve.steps.size) if curve.steps.size <= most else choose(curve, most=most)
    sampled = Curve(curve.steps[kept], curve.values[kept])
    return Sampled(sampled, curve.steps.size, nonfinite[:most], nonfinite.size)


def choose(curve: Curve, *, most: int) -> Steps:
    """(m ≤ most,) int64: which points to keep of a curve that has more.

    The curve is cut into stretches of equal length; each gives its smallest, its largest and one that is no number.
    """
    size = curve.values.size
    finite = np.isfinite(curve.values)
    # the two ends, then two points a stretch, or three where some are no number
    stretches = max(1, (most - 2) // (2 if finite.all() else 3))
    length = -(-size // stretches)
    rows = -(-size // length)
    shape = (rows, length)
    missing = rows * length - size
    low = np.pad(np.where(finite, curve.values, np.inf), (0, missing), constant_values=np.inf).reshape(shape)
    high = np.pad(np.where(finite, curve.values, -np.inf), (0, missing), constant_values=-np.inf).reshape(shape)
    gone = np.pad(~finite, (0, missing), constant_values=False).reshape(shape)
    starts = np.arange(rows) * length
    has_finite = np.isfinite(low.min(axis=1))
    kept = np.concatenate(
        (
            [0, size - 1],
            (starts + low.argmin(axis=1))[has_finite],
            (starts + high.argmax(axis=1))[has_finite],
            (starts + gone.argmax(axis=1))[gone.any(axis=1)],
        )
    )
    return np.unique(kept).astype(np.int64)
