"""The plot of a report: what a verdict recorded, as a PNG and as the CSV behind it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Style = Literal["line", "points", "threshold", "floor"]

MOST_POINTS = 2_000
"""of one series in the picture; the CSV has all"""
SIZE_INCHES = (8.0, 4.5)
DPI = 120
MOST_LABELS = 40
"""names along the x axis that can be read"""

COLOURS: Mapping[str, str] = {"threshold": "#b45309", "floor": "#6b7280"}
PALETTE = ("#0b6e8f", "#c2410c", "#6d28d9", "#15803d", "#374151")


@dataclass(frozen=True)
class Series:
    """One curve; `y` has NaN where there is none."""

    name: str
    style: Style
    y: tuple[float, ...]


@dataclass(frozen=True)
class Figure:
    """Curves over one x: numbers, or names in their order."""

    title: str
    x_title: str
    y_title: str
    log: bool
    x: tuple[float | str, ...]
    series: tuple[Series, ...]


def read_figure(document: Mapping[str, Any]) -> Figure | None:
    """What a verdict's document shows best: its own plot, else the losses by token, else the errors by name."""
    evidence: Mapping[str, Any] = document.get("evidence") or {}
    return _read_plot(evidence) or _read_tokens(evidence) or _read_measurements(document)


def _read_plot(evidence: Mapping[str, Any]) -> Figure | None:
    for plot in evidence.get("plots") or ():
        places = sorted({float(x) for curve in plot["curves"] for x in curve["x"]})
        values = [dict(zip(map(float, curve["x"]), curve["y"], strict=True)) for curve in plot["curves"]]
        series = tuple(
            Series(curve["name"], curve["style"], tuple(_number(value.get(x)) for x in places))
            for curve, value in zip(plot["curves"], values, strict=True)
        )
        return Figure(plot["title"], plot["x"], plot["y"], plot["scale"] == "log", tuple(places), series)
    return None


def _read_tokens(evidence: Mapping[str, Any]) -> Figure | None:
    """Framework and reference along the counted tokens of the first micro-batch that has both."""
    for entry in evidence.get("tokens") or ():
        if not isinstance(entry, Mapping) or entry.get("framework") is None or entry.get("reference") is None:
            continue
        pairs = [
            (_number(seen), _number(right))
            for row, rights, counts in zip(entry["framework"], entry["reference"], entry["counted"], strict=True)
            for seen, right, counted in zip(row, rights, counts, strict=True)
            if counted
        ]
        if pairs and any(abs(seen - right) > 1e-4 * max(abs(right), 1.0) for seen, right in pairs):
            series = (
                Series("framework", "points", tuple(seen for seen, _ in pairs)),
                Series("reference", "line", tuple(right for _, right in pairs)),
            )
            places = tuple(float(place) for place in range(len(pairs)))
            return Figure("Loss of each counted token", "counted token", "nats", False, places, series)
    return None


def _read_measurements(document: Mapping[str, Any]) -> Figure | None:
    """Error and threshold of everything of the unit that most of it has."""
    measured: Sequence[Mapping[str, Any]] = document.get("measurements") or ()
    if not measured:
        return None
    units = [each["unit"] for each in measured]
    unit = max(set(units), key=lambda name: (units.count(name), name))
    shown = [each for each in measured if each["unit"] == unit]
    columns = (("error", "points", "value"), ("allowed", "threshold", "threshold"), ("noise", "floor", "floor"))
    series = tuple(
        Series(name, style, tuple(_number(each.get(key)) for each in shown))  # type: ignore[arg-type]
        for name, style, key in columns
    )
    names = tuple(each["name"] if each["block"] is None else f"{each['name']} {each['block']}" for each in shown)
    kept = tuple(each for each in series if any(math.isfinite(value) for value in each.y))
    return Figure(f"{document.get('check', '')}: {unit}", "", unit, True, names, kept) if kept else None


def _number(value: Any) -> float:
    """A document's number; "nan" and "inf" are texts there."""
    return math.nan if value is None else float(value)


def write_csv(figure: Figure) -> str:
    """All points, a column a series; a cell is empty where a series has none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([figure.x_title or "name", *(series.name for series in figure.series)])
    for place, x in enumerate(figure.x):
        values = (series.y[place] for series in figure.series)
        writer.writerow([x, *("" if math.isnan(value) else repr(value) for value in values)])
    return text.getvalue()


def draw_png(figure: Figure) -> bytes:
    """The picture, 960 × 540 pixels, without anything that tells where it was made."""
    # Here: a second of import that only this needs. `Figure` of matplotlib draws without pyplot, so without a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    named = any(isinstance(x, str) for x in figure.x)
    keep = _choose(figure)
    places = [float(place) if named else float(figure.x[place]) for place in keep]
    for number, series in enumerate(figure.series):
        values = [series.y[place] for place in keep]
        if figure.log:  # a logarithm has no zero
            values = [value if value > 0 else math.nan for value in values]
        colour = COLOURS.get(series.style, PALETTE[number % len(PALETTE)])
        marks = {"points": {"linestyle": "", "marker": "o", "markersize": 4}, "line": {"linewidth": 1.2}}
        lined = {"linewidth": 1.0, "linestyle": "--" if series.style == "threshold" else ":"}
        axes.plot(places, values, label=series.name, color=colour, **marks.get(series.style, lined))  # type: ignore[arg-type]
    if figure.log:
        axes.set_yscale("log")
    if named:
        labels = [str(figure.x[place]) for place in keep] if len(keep) <= MOST_LABELS else []
        axes.set_xticks(places if labels else [], labels, rotation=90, fontsize=6)
    axes.set_title(figure.title, fontsize=10)
    axes.set_xlabel(figure.x_title)
    axes.set_ylabel(figure.y_title)
    axes.grid(alpha=0.25)
    canvas.legend(fontsize=8, frameon=False, loc="outside lower right", ncols=len(figure.series))
    file = io.BytesIO()
    canvas.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _choose(figure: Figure) -> list[int]:
    """Places to draw: all, or evenly, with the largest value of the first series among them."""
    count = len(figure.x)
    if count <= MOST_POINTS:
        return list(range(count))
    values = figure.series[0].y
    largest = max(range(count), key=lambda place: -math.inf if math.isnan(values[place]) else values[place])
    return sorted({*range(0, count, math.ceil(count / MOST_POINTS)), largest})
