"""A picture that a verdict's evidence describes, as numbers: pages draw it, and put the table behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Style = Literal["line", "points", "threshold", "floor"]
Scale = Literal["linear", "log"]

MOST_POINTS = 4_096
"""Of one curve in a verdict's document; every n-th point is kept of a longer one."""


@dataclass(frozen=True)
class Curve:
    """One curve: `x` and `y` of equal length; a `y` that is None or no number is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    style: Style = "line"


@dataclass(frozen=True)
class Plot:
    """Curves over one x axis, with what the axes say."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    scale: Scale = "linear"


def to_evidence(plots: Iterable[Plot]) -> list[dict[str, object]]:
    """JSON values for `evidence["plots"]`: a number that JSON does not know becomes null."""
    return [
        {
            "title": plot.title,
            "x": plot.x,
            "y": plot.y,
            "scale": plot.scale,
            "curves": [
                {"name": curve.name, "style": curve.style, "x": x, "y": y}
                for curve in plot.curves
                for x, y in [_thin(curve)]
            ],
        }
        for plot in plots
    ]


def _thin(curve: Curve) -> tuple[list[float], list[float | None]]:
    stride = max(1, math.ceil(len(curve.x) / MOST_POINTS))
    y = [None if value is None or not math.isfinite(value) else float(value) for value in curve.y]
    return [float(value) for value in curve.x][::stride], y[::stride]
