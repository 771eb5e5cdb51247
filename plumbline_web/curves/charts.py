"""What a chart shows, as a document that static/js/charts.js draws; no colour and no size is decided here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

LINEAR, LOG, SYMLOG = "linear", "log", "symlog"

Style = Literal["line", "faint", "points", "step", "floor", "threshold", "band", "nonfinite", "wrong"]
"""`faint`: the raw curve behind its smoothed one. `band`: upper edge, then lower edge, filled between. `nonfinite`:
markers at the top edge. `wrong`: markers of what fails."""


@dataclass(frozen=True)
class Trace:
    """One curve: `x` and `y` of equal length, a gap where `y` is no number. `colour` chooses from the palette."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style = "line"
    colour: int = 0
    text: Sequence[str] = ()
    """of each point, shown on hover"""
    legend: bool = True


@dataclass(frozen=True)
class Axis:
    title: str
    scale: str = LINEAR
    linear_below: float = 1.0
    """symlog only: the size below which the axis is linear"""
    ticks: Sequence[tuple[float, str]] = ()
    """places and their names, for an axis of things that are not numbers"""


@dataclass(frozen=True)
class Span:
    """A stretch along x, shaded."""

    start: float
    stop: float
    kind: str
    """mask"""


@dataclass(frozen=True)
class Rule:
    """A vertical line at x: the start of a document, or the first wrong module."""

    at: float
    kind: str
    """document or first"""
    text: str = ""


@dataclass(frozen=True)
class Level:
    """A horizontal line at y."""

    at: float
    kind: str
    """threshold, floor or reference"""
    text: str


@dataclass(frozen=True)
class Chart:
    """`note`: what is drawn of what, and what was left out. `empty`: why there is nothing to draw."""

    label: str
    x: Axis
    y: Axis
    traces: tuple[Trace, ...] = ()
    spans: tuple[Span, ...] = ()
    rules: tuple[Rule, ...] = ()
    levels: tuple[Level, ...] = ()
    note: str = ""
    empty: str = ""
    more: str = ""
    """what is held back, and how to have it"""


def to_json(chart: Chart) -> dict[str, Any]:
    """The document; a number that JSON does not know is null, which a chart draws as a gap."""
    plain: dict[str, Any] = _plain(asdict(chart))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
