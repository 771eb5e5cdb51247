"""The weights of a quantised export are the trainer's within the error that their format allows.

Reference: the trainer's recorded weights of the step that the directory states (`sync.json`; its last step else), and
the definition of the format: number times scale. An int8 may be off by half a step of its scale, a float8 by half the
spacing of its numbers (2⁻⁴ of e4m3, 2⁻³ of e5m2), and each by the round-off of a cast to bf16 before; scales are one a
tensor, a row or a block of the size that config.json states, and those of integers reach no further than twice the
largest weight. Embeddings, output layers, routers, norms and what `quantization_config` leaves out are not quantised.
Where all weights were recorded whole, the verdict says how far log-probabilities move.
Catches: scales of another axis or of another tensor, weights quantised twice or from an older step, blocks that are not
a number (`slime-fp8-zero-block-nan`), layers quantised that should not be
(`miles-indexer-weight-quantised-for-wrong-layout`), scales that are far too large.
Cannot see: whether the quantised model is good enough (its log-probabilities are evidence, not judged); a step that
moved the weights by less than the format's error; formats that pack several numbers (int4, mxfp4); activations.
Cost: one reading of the directory; no run of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from checks.captures.capture import TensorRecord
from checks.check import Check, inconclusive, skipped
from checks.errors import BadRequest
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.spec import RunSpec
from checks.transfer.change import measure_change
from checks.transfer.dump import Dump, read_dump
from checks.transfer.merging import adapted, merged_numbers
from checks.transfer.names import match_dump
from checks.transfer.quantised import (
    BF16_CAST,
    FLOAT32_SLACK,
    Dequantised,
    Quantised,
    UnknownLayout,
    beside_weights,
    dequantise,
    find_quantised,
    other_axis,
    unasked,
)
from checks.transfer.states import TrainerStates, known_values, read_states
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "serving.quantised"
FURTHEST = 2.1
"""Scales are the largest weight over the largest number, or the next power of two above."""
SMALLEST_ROOM = 1e-300
"""Zeros are allowed no error, and have none."""
SHOWN = 3
LISTED = 50


@dataclass(frozen=True)
class _Judged:
    """One parameter: `ratios`: steps done → its largest error in allowed errors, infinite where it is not a number."""

    name: str
    source: str
    form: str
    layout: str
    ratios: Mapping[int, float]
    relative: float
    reach: float
    """how many times the largest weight the scales of an integer reach; 1 of other formats"""

    def wrong(self, step: int) -> bool:
        return not self.ratios[step] <= 1.0 or self.reach > FURTHEST


@dataclass(frozen=True)
class _Reader:
    """The quantised tensors of a dump as what they stand for, or as the error that they allow."""

    values: Mapping[str, torch.Tensor]

    def read(self, name: str) -> torch.Tensor:
        return self.values[name]


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    assert material.spec.synced is not None
    try:
        dump = read_dump(material.spec.synced)
        found = tuple(find_quantised(dump))
        if not found:
            return _judge_unquantised(dump)
        return _judge(material, dump, found, read_states(capture))
    except (BadRequest, UnknownLayout) as error:
        return inconclusive(NAME, str(error).rstrip("."))


def _judge_unquantised(dump: Dump) -> Verdict:
    stated = dump.config.get("quantization_config")
    if stated:
        method = stated.get("quant_method") if isinstance(stated, dict) else stated
        return inconclusive(
            NAME, f"config.json states quantization_config ({method}), and no weight has a scale beside it"
        )
    return skipped(NAME, "the directory holds no quantised weight: none has a scale beside it")


def _judge(material: Material, dump: Dump, found: tuple[Quantised, ...], states: TrainerStates) -> Verdict:
    step = states.steps[-1] if dump.step is None else dump.step
    if step not in states.records:
        recorded = ", ".join(map(str, states.steps))
        return inconclusive(NAME, f"sync.json says step {step}, and weights were recorded after steps {recorded}")
    parts = {each.name: dequantise(dump, each) for each in found}
    beside = beside_weights(dump.shapes)
    names = [name for name in dump.shapes if name not in beside]
    known = {name: shape for name, shape in states.shapes.items() if ".lora_" not in name}
    tied = bool(material.asked_config.get("tie_word_embeddings"))
    matching = match_dump(dump, known, tied=tied, names=names)
    by_source = {each.name: each for each in found}
    weights = _Reader({name: part.weight for name, part in parts.items()})
    allowed = _Reader({name: part.allowed for name, part in parts.items()})
    judged, whole = [], {}
    for name, target in matching.targets.items():
        each = by_source.get(matching.source_of(target))
        if each is None:
            continue
        reach = parts[each.name].reach
        made = Dequantised(matching.assemble(target, weights), matching.assemble(target, allowed), reach)
        scale = material.spec.lora_alpha / material.spec.lora_r
        judged.append(_compare(name, each, made, states, step=step, scale=scale))
        whole[name] = made.weight
    matched = {each.source for each in judged}
    lost = [each.name for each in found if each.name not in matched]
    odd = [
        (each.name, why)
        for each in found
        if (why := unasked(each, dump.config) or other_axis(each, dump.shapes[each.name], dump.config)) is not None
    ]
    change = None if material.spec.lora else measure_change(material.spec, states.records[step], whole)
    return _decide(dump, states, step, judged, lost, odd, change)


def _compare(
    name: str, each: Quantised, made: Dequantised, states: TrainerStates, *, step: int, scale: float
) -> _Judged:
    ratios: dict[int, float] = {}
    relative, reach = 0.0, 1.0
    for done in states.steps:
        records = states.records[done]
        merged = name in adapted(records)
        numbers = merged_numbers(name, records, scale=scale) if merged else known_values(records[name])
        if numbers is None or tuple(made.weight.shape) != records[name].global_shape:
            continue
        positions, exact = numbers[0], numbers[1].double()
        mine, room = (
            part.reshape(-1) if positions is None else part.reshape(-1)[positions]
            for part in (made.weight, made.allowed)
        )
        error = (mine - exact).abs()
        ratio = error / (room + (BF16_CAST + FLOAT32_SLACK) * exact.abs()).clamp(min=SMALLEST_ROOM)
        ratios[done] = float(ratio.nan_to_num(nan=torch.inf).max())
        if done == step:
            relative = float(error.norm() / exact.norm().clamp(min=SMALLEST_ROOM))
            reach = _reach(made, records[name]) if not merged and each.layout == "tensor" else 1.0
    layout = each.layout if each.layout != "block" else f"block {each.block[0]} × {each.block[1]}"
    return _Judged(name, each.name, each.dtype, layout, ratios, relative, reach)


def _reach(made: Dequantised, record: TensorRecord) -> float:
    ends = [abs(end) for end in (record.stats.get("min"), record.stats.get("max")) if end is not None]
    largest = max(ends, default=0.0)
    return made.reach / largest if made.reach is not None and largest > 0.0 else 1.0


def _decide(
    dump: Dump,
    states: TrainerStates,
    step: int,
    judged: list[_Judged],
    lost: list[str],
    odd: list[tuple[str, str]],
    change: Mapping[str, float] | None,
) -> Verdict:
    known = [each for each in judged if step in each.ratios]
    wrong = [each for each in _by_ratio(known, step) if each.wrong(step)]
    forms = sorted({f"{each.form} by {each.layout}" for each in judged})
    worst = max((each.ratios[step] for each in known), default=0.0)
    measurements = (
        Measurement("largest error of a weight", worst, 1.0, not wrong, limit=2.0, unit="allowed errors"),
        Measurement(
            "layers quantised otherwise than config.json and their kind say",
            float(len(odd)),
            0.0,
            not odd,
            limit=1.0,
            unit="count",
        ),
    )
    evidence: dict[str, Any] = {
        "step": step,
        "forms": forms,
        "quantised": len(judged),
        "worst": [
            [e.name, e.layout, _json(e.ratios[step]), _json(e.relative)] for e in _by_ratio(known, step)[:LISTED]
        ],
        "should_not_be": [list(pair) for pair in odd[:LISTED]],
        "log_prob_change": change,
        "plots": to_evidence([_draw(known, step)]),
    }
    if wrong or odd:
        sentence = _say_wrong(states, step, wrong, known) if wrong else f"{odd[0][0]} is quantised, and {odd[0][1]}"
        more = f" (and {len(odd) - 1} more)" if not wrong and len(odd) > 1 else ""
        return Verdict(
            NAME,
            Status.FAIL,
            sentence + more,
            measurements,
            pattern=Pattern.PRECISION if not wrong else Pattern.STATE_TRANSFER,
            first_wrong=wrong[0].name if wrong else odd[0][0],
            evidence=evidence,
        )
    if lost or not known:
        what = f"{lost[0]} is no parameter that was recorded" if lost else "no quantised weight was recorded by the run"
        return inconclusive(NAME, what, measurements=measurements, evidence=evidence)
    moved = ""
    if change is not None:
        moved = f"; log-probabilities move by {change['mean']:.2g} nats in the mean, {change['largest']:.2g} at most"
    sentence = (
        f"{len(known)} weights in {' and '.join(forms)} are the trainer's after step {step} within {worst:.2g} of what "
        f"their format allows{moved}"
    )
    return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)


def _draw(known: Sequence[_Judged], step: int) -> Plot:
    """The largest error of each weight, in the order of the checkpoint."""
    places = [float(place) for place in range(1, len(known) + 1)]
    return Plot(
        "Largest error of each quantised weight",
        "weight, in the order of the checkpoint",
        "share of the allowed error",
        (
            Curve("weights", places, [each.ratios[step] for each in known], style="points"),
            Curve("allowed", places, [1.0] * len(known), style="threshold"),
        ),
    )


def _say_wrong(states: TrainerStates, step: int, wrong: list[_Judged], known: list[_Judged]) -> str:
    fits = [other for other in states.steps if all(each.ratios.get(other, 2.0) <= 1.0 for each in known)]
    count = f"{len(wrong)} of {len(known)} quantised weights"
    if fits:
        near = min(fits, key=lambda other: abs(step - other))
        if near != step:
            return f"{count} are those of after step {near}, not {step}, first {wrong[0].name}"
        far = next(each for each in wrong if each.reach > FURTHEST)
        return f"the scale of {far.name} reaches {far.reach:.3g} times its largest weight: most of its numbers are idle"
    shown = "; ".join(
        f"{each.name} ({each.form} by {each.layout}) is up to {each.ratios[step]:.3g} times as far off as that allows"
        for each in wrong[:SHOWN]
    )
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return f"{count} are not the trainer's after step {step}: {shown}{more}"


def _by_ratio(known: list[_Judged], step: int) -> list[_Judged]:
    return sorted(known, key=lambda each: -each.ratios[step])


def _json(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)


def _applies(spec: RunSpec) -> str | None:
    return None if spec.synced is not None else "no exported weights were given; set synced to their directory"


CHECK = Check(
    NAME,
    "a quantised export holds the trainer's weights within its format's error",
    __doc__ or "",
    judge,
    applies=_applies,
)
