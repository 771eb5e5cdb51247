"""What a measured step holds that its shapes do not imply: one finding a cause, the most telling first."""

from __future__ import annotations

from checks.memory.activations import compare_activations
from checks.memory.comparison import Comparison, Finding, measure, name_place
from checks.memory.implied import Implied
from checks.memory.measured import AFTER, BEFORE, Measured
from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern

SAME_CLASS = 1.05
"""Held bytes and peaks of a run with the reference's own model class, in those of the reference. They were equal to a
few bytes in every healthy run; the rest is for locals that live a line longer, such as an adapter's input."""

OTHER_CLASS = 2.0
"""Likewise where the run's model class or device is another: fused kernels keep other intermediate results. Above it,
something of every layer is held twice."""

FOREACH_COPIES = 1
"""Of what is trained, in the update: torch's foreach optimizers keep the denominators of all parameters at once
(https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html, foreach)."""

SINGLE_COPIES = 3
"""Of the largest parameter, in the update: the temporaries of one parameter's turn."""

KEPT_SHARE = 0.01
"""Of what the forward holds; healthy runs keep nothing of it after its backward."""

COPIED_SHARE = 0.9
"""Of the parameters' shapes, found a second time: chance does not find them."""

GROWING_STEPS = 3
"""Steps that must each have left something behind, two steps ago or earlier, before that is growth."""


def compare(spec: RunSpec, measured: Measured, implied: Implied, *, model: str) -> Comparison:
    """Hold what was counted against what is implied; `model`: name of the run's model class."""
    same = model == implied.model and measured.device.split(":")[0] == implied.device.split(":")[0]
    factor = SAME_CLASS if same else OTHER_CLASS
    parts = (
        _compare_resident(measured, implied),
        _compare_growth(measured),
        _compare_copies(measured),
        _compare_zeroed(measured),
        _compare_kept(measured, implied),
        compare_activations(spec, measured, implied, factor),
        _compare_update(measured, implied),
    )
    measurements = tuple(m for part in parts for m in part.measurements)
    return Comparison(measurements, tuple(f for part in parts for f in part.findings))


def _compare_resident(measured: Measured, implied: Implied) -> Comparison:
    """Parameters, gradients and states, exactly; fewer bytes than implied are no matter of memory."""
    moment, resident = measured.moments_named(BEFORE)[-1], implied.resident
    after = measured.moments_named(AFTER)[-1]
    rows = (
        ("parameters", after.parameters, resident.parameters),
        ("gradients", moment.gradients, resident.gradients),
        ("optimizer state", after.states, resident.states),
    )
    measurements = [measure(f"bytes of {name}", found, wanted) for name, found, wanted in rows]
    findings = [
        Finding(
            name,
            f"{name} take {found:,} bytes, and the asked shapes and dtypes imply {wanted:,}",
            Pattern.PRECISION,
        )
        for name, found, wanted in rows
        if found > wanted
    ]
    return Comparison(tuple(measurements), tuple(findings))


def _compare_growth(measured: Measured) -> Comparison:
    """What each of the first steps left behind that is alive two steps later."""
    last = measured.moments_named(AFTER)[-1]
    old = {s.made_in: s for s in last.survivors if 1 <= s.made_in <= last.step - 2}
    steps = range(1, last.step - 1)
    grown = [old[step] for step in steps if step in old and old[step].bytes > 0]
    grows = len(steps) >= GROWING_STEPS and len(grown) == len(steps)
    growth = min((each.bytes for each in grown), default=0) if grows else 0
    measurement = measure("growth of live bytes a step", growth, 0)
    if not grows:
        return Comparison((measurement,), ())
    largest = grown[-1].groups[0]
    sentence = (
        f"every step leaves {growth:,} bytes or more alive for good: of step {grown[-1].made_in} {largest.sentence}"
    )
    return Comparison((measurement,), (Finding(name_place(largest), sentence),))


def _compare_copies(measured: Measured) -> Comparison:
    """A second set of tensors with the shapes of the parameters, or of what is trained."""
    after, before = measured.moments_named(AFTER)[-1], measured.moments_named(BEFORE)[-1]
    kinds = (
        ("the parameters", after.copies_of_parameters, "a second copy of the model"),
        ("what is trained", after.copies_of_trainable, "a second copy of what is trained"),
        ("the gradients", before.copies_of_trainable, "a second copy of the gradients"),
    )
    measurements: list[Measurement] = []
    findings: list[Finding] = []
    for name, copies, what in kinds:
        found = copies.matched >= COPIED_SHARE * copies.of and copies.matched > 1
        measurements.append(measure(f"bytes of another copy of {name}", copies.bytes if found else 0, 0))
        if found and copies.largest is not None and not findings:
            of_gradients = copies.largest.phase != "before"
            title = "a second copy of the gradients" if of_gradients else what
            sentence = f"{title} is alive, {copies.bytes:,} bytes: {copies.largest.sentence}"
            findings.append(Finding("gradients" if of_gradients else "parameters", sentence))
    return Comparison(tuple(measurements), tuple(findings))


def _compare_zeroed(measured: Measured) -> Comparison:
    asked = [zeroed for zeroed in measured.zeroed if zeroed.set_to_none]
    if not asked:
        return Comparison((), ())
    worst = max(asked, key=lambda zeroed: zeroed.alive)
    measurement = measure("gradients alive after zero_grad(set_to_none=True)", worst.alive, 0)
    if worst.alive == 0:
        return Comparison((measurement,), ())
    sentence = (
        f"zero_grad(set_to_none=True) left {worst.alive:,} bytes of gradients alive before step {worst.step}: "
        f"{worst.groups[0].sentence}"
    )
    return Comparison((measurement,), (Finding("gradients", sentence),))


def _compare_kept(measured: Measured, implied: Implied) -> Comparison:
    """What a forward made and nothing needs once its backward has run."""
    last = measured.moments_named(AFTER)[-1]
    kept = [
        group
        for group in last.others
        if group.phase == "forward"
        and group.step == last.step
        and group.shape
        and group.shape[-1] != implied.micro_batches[0].vocabulary
    ]
    total = sum(group.bytes for group in kept)
    limit = KEPT_SHARE * max(micro.held for micro in implied.micro_batches)
    measurement = measure("activations alive after the update", total, limit)
    if total <= limit:
        return Comparison((measurement,), ())
    sentence = f"{total:,} bytes of activations are alive after the update: {kept[0].sentence}"
    return Comparison((measurement,), (Finding(name_place(kept[0]), sentence),))


def _compare_update(measured: Measured, implied: Implied) -> Comparison:
    phases = measured.phases_of(implied.step, "update")
    if not phases:
        return Comparison((), ())
    resident = implied.resident
    limit = FOREACH_COPIES * resident.trainable + SINGLE_COPIES * resident.largest
    found = max(phase.peak - phase.begin for phase in phases)
    measurement = measure("peak of the update above its begin", found, limit)
    if found <= limit:
        return Comparison((measurement,), ())
    loose = [group for phase in phases for group in phase.at_peak if group.phase == "update" and group.role is None]
    named = f": {loose[0].sentence}" if loose else ""
    sentence = f"the update takes {found:,} bytes beyond what stays, and {limit:,} are implied and allowed{named}"
    return Comparison((measurement,), (Finding("optimizer update", sentence),))


def find_unsettled(measured: Measured) -> str | None:
    """Why what was counted does not say enough, None where it does."""
    moments = measured.moments_named(AFTER)
    if not measured.operations or not moments:
        return "the meter saw no operation of a whole step"
    if moments[-1].step < GROWING_STEPS + 2:
        return f"the run ended after {moments[-1].step} steps, and growth takes {GROWING_STEPS + 2} to be told"
    return None
