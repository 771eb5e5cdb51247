"""The table beside the curves: what a reader without scripts, or with a screen reader, has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plumbline_web.curves.compared import TITLES, Source


@dataclass(frozen=True)
class Line:
    """One curve in numbers."""

    label: str
    quantity: str
    steps: int
    first: float
    last: float
    smallest: float | None
    largest: float | None
    nonfinite: int
    first_nonfinite: int | None


def summarise(sources: Sequence[Source]) -> tuple[Line, ...]:
    """A line a curve, quantity by quantity."""
    return tuple(
        Line(
            label=source.label,
            quantity=title,
            steps=curve.steps.size,
            first=float(curve.values[0]),
            last=float(curve.values[-1]),
            smallest=curve.smallest,
            largest=curve.largest,
            nonfinite=curve.nonfinite.size,
            first_nonfinite=int(curve.nonfinite[0]) if curve.nonfinite.size else None,
        )
        for name, title in TITLES.items()
        for source in sources
        if (curve := source.curves.get(name)) is not None and curve.steps.size
    )
