"""The step page's curves: loss difference by token, forward error by module, scale and direction by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from plumbline_web.curves.charts import LOG, SYMLOG, Axis, Chart, Level, Rule, Span, Style, Trace
from plumbline_web.curves.downsample import downsample
from plumbline_web.curves.series import Curve
from plumbline_web.validations.stepdiff.forward import Forward, Module
from plumbline_web.validations.stepdiff.names import place
from plumbline_web.validations.stepdiff.tensors import Tensor
from plumbline_web.validations.stepdiff.tokens import TokenRow

LOWER_EDGE = 0.1
"""Where a logarithmic axis draws an error of exactly 0: in parts of the smallest number that it shows."""

MOST_TICKS = 16
"""Layers that an axis names."""

MOST_RULES = 200
"""Document boundaries that are drawn; more would be a grey wall."""


def draw_tokens(row: TokenRow) -> Chart:
    """framework − reference of each counted token, in nats, between ± threshold, with mask and documents."""
    whole = row.difference()
    label = f"Loss difference by token, micro-batch {row.micro}, row {row.row}"
    x = Axis("position in the row")
    if not whole.steps.size:
        return Chart(label, x, Axis("nats"), empty=_say_no_tokens(row))
    sampled = downsample(whole)
    wrong = _beyond(whole, row.threshold)
    traces = [
        Trace(
            "framework − reference",
            sampled.curve.steps.tolist(),
            sampled.curve.values.tolist(),
            style="points",
            text=tuple(_say_token(row, position) for position in sampled.curve.steps.tolist()),
        )
    ]
    if wrong.steps.size:
        shown = downsample(wrong).curve
        traces.append(Trace("beyond the threshold", shown.steps.tolist(), shown.values.tolist(), style="wrong"))
    if sampled.markers.size:
        gone = sampled.markers.tolist()
        traces.append(Trace("not finite", gone, [0.0] * len(gone), style="nonfinite"))
    return Chart(
        label=label,
        x=x,
        y=Axis("framework − reference, nats", SYMLOG, row.floor or row.threshold or 1.0),
        traces=tuple(traces),
        spans=tuple(Span(start - 0.5, stop - 0.5, "mask") for start, stop in row.masked_spans()),
        rules=tuple(Rule(d.start - 0.5, "document", f"document {i}") for i, d in enumerate(row.documents[:MOST_RULES])),
        levels=tuple(_edges(row)),
        note=_note_tokens(row, sampled.note),
    )


def draw_forward(forward: Forward) -> Chart:
    """Relative error of each module's output on the framework's own inputs, in the order of completion."""
    modules = forward.modules
    if not modules:
        return Chart("Forward error by module", Axis(""), Axis(""), empty=forward.why)
    floors = [math.nan if module.floor is None else module.floor for module in modules]
    edge = _lower_edge([*(m.error for m in modules), *floors, *(m.threshold for m in modules)])
    sides = [
        Trace(
            title,
            [i for i, _ in members],
            [m.error or edge for _, m in members],
            style=style,
            text=[f"{m.path} ({m.class_name})" for _, m in members],
        )
        for title, style, members in _split(modules)
    ]
    places = list(range(len(modules)))
    first = next((i for i, module in enumerate(modules) if not module.holds), None)
    exact = sum(module.error == 0.0 for module in modules)
    return Chart(
        label="Forward error by module",
        x=Axis("modules, in order of completion", ticks=_layer_ticks([m.path for m in modules])),
        y=Axis("relative error of the output", LOG),
        traces=(
            *sides,
            Trace("threshold", places, [m.threshold for m in modules], style="threshold"),
            Trace("noise floor", places, floors, style="floor"),
        ),
        rules=() if first is None else (Rule(first, "first", f"first divergence: {modules[first].path}"),),
        note=f"{len(modules)} modules, {forward.wrong} wrong by themselves" + _say_exact(exact),
    )


def draw_scale(tensors: Sequence[Tensor]) -> Chart:
    """The factor by which each tensor's reference must be multiplied to come nearest to it, along the model."""
    known = [(i, t, t.scale) for i, t in enumerate(tensors) if t.scale is not None]
    return Chart(
        label="Scale by tensor",
        x=Axis("tensors in the order of the model", ticks=_layer_ticks([t.name for t in tensors])),
        y=Axis("scale: framework ÷ reference"),
        traces=tuple(_by_tensor("scale", known)),
        levels=(Level(1.0, "reference", "reference"),),
        note=f"{len(known)} tensors",
        empty="" if known else "This check keeps no scale of its tensors.",
    )


def draw_direction(tensors: Sequence[Tensor]) -> Chart:
    """1 − cosine of each tensor against its reference: 0 is the same direction, and scale does not matter."""
    off = [(i, t, 1.0 - t.cosine) for i, t in enumerate(tensors) if t.cosine is not None]
    edge = _lower_edge([value for _, _, value in off])
    known = [(i, t, value or edge) for i, t, value in off]
    exact = sum(value == 0.0 for _, _, value in off)
    return Chart(
        label="Direction by tensor",
        x=Axis("tensors in the order of the model", ticks=_layer_ticks([t.name for t in tensors])),
        y=Axis("1 − cosine", LOG),
        traces=tuple(_by_tensor("1 − cosine", known)),
        note=f"{len(known)} tensors" + _say_exact(exact),
        empty="" if known else "This check keeps no direction of its tensors.",
    )


def _split(modules: Sequence[Module]) -> Iterator[tuple[str, Style, list[tuple[int, Module]]]]:
    numbered = list(enumerate(modules))
    right, wrong = [m for m in numbered if m[1].holds], [m for m in numbered if not m[1].holds]
    if right:
        yield "error", "points", right
    if wrong:
        yield "error, beyond the threshold", "wrong", wrong


def _layer_ticks(names: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """A tick where each layer begins, and at what lies outside; of many layers some."""
    ticks: list[tuple[float, str]] = []
    for index, name in enumerate(names):
        where = place(name)
        title = where.row if where.layer is None else f"layer {where.layer}"
        if not ticks or ticks[-1][1] != title:
            ticks.append((float(index), title))
    layers = [tick for tick in ticks if tick[1].startswith("layer ")]
    stride = -(-len(layers) // MOST_TICKS) or 1
    return tuple(layers[::stride])


def _lower_edge(values: Iterable[float]) -> float:
    return LOWER_EDGE * min((value for value in values if value > 0.0), default=1.0)


def _say_exact(count: int) -> str:
    return f"; {count} agree exactly and lie on the lower edge" if count else ""


def _by_tensor(name: str, points: Sequence[tuple[int, Tensor, float]]) -> Iterator[Trace]:
    for style, title, chosen in (
        ("points", name, [p for p in points if p[1].holds]),
        ("wrong", f"{name}, beyond the threshold", [p for p in points if not p[1].holds]),
    ):
        if chosen:
            yield Trace(
                title,
                [i for i, _, _ in chosen],
                [value for _, _, value in chosen],
                style="points" if style == "points" else "wrong",
                text=[tensor.name for _, tensor, _ in chosen],
            )


def _beyond(curve: Curve, threshold: float | None) -> Curve:
    if threshold is None:
        return Curve(curve.steps[:0], curve.values[:0])
    with np.errstate(invalid="ignore"):
        beyond = np.abs(curve.values) > threshold
    return Curve(curve.steps[beyond], curve.values[beyond])


def _edges(row: TokenRow) -> Iterator[Level]:
    for kind, size in (("threshold", row.threshold), ("floor", row.floor)):
        if size is not None:
            yield Level(size, kind, kind)
            yield Level(-size, kind, "")


def _note_tokens(row: TokenRow, points: str) -> str:
    documents = f"{len(row.documents)} documents" if len(row.documents) != 1 else "one document"
    hidden = f", the first {MOST_RULES} boundaries drawn" if len(row.documents) > MOST_RULES else ""
    return f"{points}; {row.counted:,} of {len(row.tokens):,} positions count; {documents}{hidden}; shaded: not counted"


def _say_token(row: TokenRow, position: int) -> str:
    token = row.tokens[position]
    document = "" if token.document is None else f", document {token.document}"
    return f"position {position}, token {token.token}{document}"


def _say_no_tokens(row: TokenRow) -> str:
    if not row.counted:
        return "The loss counts no token of this row."
    if row.misread:
        return (
            f"The loss counts {row.misread} position{'s' if row.misread > 1 else ''} of this row otherwise than the "
            "labels ask, so losses were not compared; the table shows which."
        )
    return "The losses of this row were not compared: the targets are wrong, see the sentence of step.loss."
