"""Curves of several validations in one chart, and their differences from the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plumbline_web.curves.charts import LINEAR, LOG, SYMLOG, Axis, Chart, Level, Style, Trace
from plumbline_web.curves.domain import QUANTITIES, read_curves
from plumbline_web.curves.downsample import MOST_POINTS, Sampled, downsample
from plumbline_web.curves.selection import MOST_TRACES, X_AXES, Selection
from plumbline_web.curves.series import Curve, Steps, Values, place_along, smooth, subtract
from plumbline_web.validations.enums import RunRole
from plumbline_web.validations.models import ValidationRun

TITLES: Mapping[str, str] = {
    "loss": "Loss, nats a token",
    "grad_norm": "Gradient norm before clipping",
    "learning_rate": "Learning rate",
}


@dataclass(frozen=True)
class Source:
    """One run whose curves are shown, with the name it bears in a legend."""

    run: int
    label: str
    colour: int
    curves: Mapping[str, Curve]


def read_sources(
    selection: Selection, *, visible: Sequence[int], quantities: Sequence[str] = QUANTITIES
) -> tuple[Source, ...]:
    """The runs of the selected validations that may be seen, with their curves whole, in three queries."""
    rows = ValidationRun.objects.filter(validation__in=visible).values_list("validation", "role", "run")
    order = {pk: index for index, pk in enumerate(selection.validations)}
    roles = list(RunRole.values)
    wanted = sorted(
        (row for row in rows if selection.all_runs or row[1] == RunRole.RUN),
        key=lambda row: (order[row[0]], roles.index(row[1])),
    )
    curves = read_curves({run for _, _, run in wanted}, (*quantities, selection.x))
    return tuple(
        Source(run, _label(validation, role), colour, curves[run])
        for colour, (validation, role, run) in enumerate(row for row in wanted if row[2] in curves)
    )


def draw_curves(sources: Sequence[Source], quantity: str, selection: Selection) -> Chart:
    """The curves as they were logged; with smoothing, each stays visible behind its mean."""
    present = [source for source in sources if quantity in source.curves]
    drawn = present if selection.all_traces else present[:MOST_TRACES]
    wholes = [(source, source.curves[quantity]) for source in drawn]
    sampled = [(source, downsample(curve)) for source, curve in wholes]
    traces = [trace for source, curve in wholes for trace in _trace(source, curve, selection)]
    return Chart(
        label=TITLES[quantity],
        x=Axis(X_AXES[selection.x]),
        y=Axis(TITLES[quantity], selection.scale, _linear_below([points.curve.values for _, points in sampled])),
        traces=tuple(traces),
        note="; ".join((_note(sampled), *_say_lost(wholes, selection), *_say_off_scale(wholes, selection))),
        empty="" if present else _say_empty(quantity),
        more=_more(len(present) - len(drawn)),
    )


def draw_differences(sources: Sequence[Source], quantity: str, selection: Selection) -> Chart:
    """Each curve minus the first, step by step in float64, and only then fewer points."""
    present = [source for source in sources if quantity in source.curves]
    drawn = present if selection.all_traces else present[:MOST_TRACES]
    base, others = (drawn[0], drawn[1:]) if drawn else (None, [])
    if base is None or not others:
        return Chart(
            label=f"Difference of {quantity}",
            x=Axis(X_AXES[selection.x]),
            y=Axis(""),
            empty="A difference needs the curves of two runs.",
        )
    found = [(source, subtract(source.curves[quantity], base.curves[quantity])) for source in others]
    sampled = [(source, downsample(curve)) for source, curve in found]
    traces = [
        *_band(base, quantity, selection, steps=np.concatenate([curve.steps for _, curve in found])),
        *(t for source, curve in found for t in _trace(source, curve, selection)),
    ]
    scale = SYMLOG if selection.scale in (LOG, SYMLOG) else LINEAR
    return Chart(
        label=f"Difference of {quantity} from {base.label}",
        x=Axis(X_AXES[selection.x]),
        y=Axis(f"difference from {base.label}", scale, _linear_below([points.curve.values for _, points in sampled])),
        traces=tuple(traces),
        levels=(Level(0.0, "reference", base.label),),
        note="; ".join((f"difference first, then sampled: {_note(sampled)}", *_say_lost(found, selection))),
        more=_more(len(present) - len(drawn)),
    )


def _trace(source: Source, whole: Curve, selection: Selection) -> Iterator[Trace]:
    """The curve, its mean where one is asked for, and its steps that are no number; each sampled from the whole."""
    sampled = downsample(whole)
    axis = source.curves.get(selection.x)
    raw: Style = "faint" if selection.smoothing else "line"
    yield _as_trace(source, sampled.curve, axis, selection, style=raw)
    if selection.smoothing:
        mean = downsample(smooth(whole, selection.smoothing)).curve
        yield _as_trace(source, mean, axis, selection, style="line", name=f"{source.label}, smoothed")
    if sampled.markers.size:
        marks = Curve(sampled.markers, np.zeros(sampled.markers.size))
        yield _as_trace(source, marks, axis, selection, style="nonfinite", name=f"{source.label}: not finite")


def _as_trace(
    source: Source, curve: Curve, axis: Curve | None, selection: Selection, *, style: Style, name: str = ""
) -> Trace:
    along = curve.steps.astype(np.float64) if selection.x == "step" else place_along(curve, axis)
    if along is None:
        along = np.full(curve.steps.shape, np.nan)
    return Trace(
        name=name or source.label,
        x=along.tolist(),
        y=curve.values.tolist(),
        style=style,
        colour=source.colour,
        text=tuple(f"step {step:,}" for step in curve.steps.tolist()),
        legend=style == "line",
    )


def _band(base: Source, quantity: str, selection: Selection, *, steps: Steps) -> Iterator[Trace]:
    """± tolerance × |first curve| over the compared steps, upper edge then lower; sampled at the curve's extremes."""
    whole = base.curves[quantity]
    compared = np.isin(whole.steps, steps)
    curve = downsample(Curve(whole.steps[compared], whole.values[compared]), most=MOST_POINTS // 2).curve
    width = selection.tolerance * np.abs(curve.values)
    for sign in (1.0, -1.0):
        edge = Curve(curve.steps, sign * width)
        yield _as_trace(
            base,
            edge,
            base.curves.get(selection.x),
            selection,
            style="band",
            name=f"± {selection.tolerance:g} of {base.label}",
        )


def _linear_below(values: Sequence[Values]) -> float:
    """Where a symlog axis becomes linear: the smallest decade that holds a tenth of the sizes."""
    sizes = np.abs(np.concatenate(values)) if values else np.empty(0)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0.0)]
    return float(10.0 ** np.floor(np.log10(np.quantile(sizes, 0.1)))) if sizes.size else 1.0


def _note(sampled: Sequence[tuple[Source, Sampled]]) -> str:
    notes = [points.note for _, points in sampled]
    if len(set(notes)) == 1:
        return notes[0] if len(notes) == 1 else f"{notes[0]} each"
    return "; ".join(f"{source.label}: {points.note}" for source, points in sampled)


def _say_lost(curves: Sequence[tuple[Source, Curve]], selection: Selection) -> Iterator[str]:
    """The runs that cannot be drawn along the chosen axis, because they logged no such number."""
    lost = [source.label for source, _ in curves if selection.x != "step" and selection.x not in source.curves]
    if lost:
        yield f"{', '.join(lost)} logged no {X_AXES[selection.x]} and cannot be drawn along it"


def _say_off_scale(curves: Sequence[tuple[Source, Curve]], selection: Selection) -> Iterator[str]:
    count = sum(int((curve.values <= 0.0).sum()) for _, curve in curves)
    if selection.scale == LOG and count:
        yield f"{count:,} points are 0 or less and have no place on a logarithmic axis; symlog shows them"


def _more(held_back: int) -> str:
    return f"{held_back:,} more curves are not drawn; ask for them with “all curves”." if held_back > 0 else ""


def _say_empty(quantity: str) -> str:
    name = TITLES[quantity].split(",")[0].lower()
    return f"No {name} was logged by these runs; one that is not over shows it when it is."


def _label(validation: int, role: str) -> str:
    return f"V-{validation}" if role == RunRole.RUN else f"V-{validation} {RunRole(role).label}"
