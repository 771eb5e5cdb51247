"""The logged curves look like training: the loss falls without a spike that stays, and the gradient norm lives.

Reference: none but plausibility, which makes this the weakest level of all: a wrong gradient can lower the loss, and a
right one can raise it. It is here because it watches every step of a whole run, where the exact checks watch two.
Catches: NaN and infinity, a loss that rises or stays, a spike that does not come back, a gradient norm that explodes
or is dead.
Cannot see: what is wrong while the loss falls, which is most of what goes wrong silently.
Cost: nothing beyond the run; it needs 20 logged steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from checks.captures.log import LogRecord
from checks.check import Check, inconclusive
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "convergence.health"
FEWEST = 20
"""Steps below which the noise of single batches says nothing."""
SPIKE = 8.0
"""Deviations, each 1.4826 times the median absolute one (that of a normal distribution), above the steps before."""
WINDOW = 10
"""Steps before a spike that it is compared with, and after it within which the loss must have come back."""
EXPLODED = 100.0
"""A gradient norm by so much above the median of the run."""
DEAD = 1e-6
"""A gradient norm under so small a part of the first steps'."""
NORMAL = 1.4826


@dataclass(frozen=True)
class Finding:
    """One thing that does not look like training."""

    sentence: str
    where: str
    pattern: Pattern | None = None


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None:
        return inconclusive(NAME, material.why_not())
    records = [record for record in capture.log if record.loss is not None]
    if not records:
        return inconclusive(NAME, "the framework logged no loss")
    evidence = {"plots": to_evidence(_draw(records))}
    finding = find_nonfinite(records)
    if finding is None and len(records) < FEWEST:
        return inconclusive(NAME, f"only {len(records)} steps were logged; {FEWEST} tell training from noise")
    losses = [record.loss for record in records if record.loss is not None]
    finding = finding or find_spike(records) or find_norm(records) or find_course(losses, lr=material.spec.lr)
    if finding is not None:
        return Verdict(
            NAME,
            Status.FAIL,
            finding.sentence,
            pattern=finding.pattern,
            first_wrong=finding.where,
            evidence=evidence,
        )
    start, end = median(losses[: WINDOW // 2]), median(losses[-WINDOW // 2 :])
    fall = Measurement("fall of the loss", start - end, 0.0, True, floor=noise_of(losses), unit="nats")
    sentence = f"over {len(records)} steps the loss falls from {start:.3g} to {end:.3g} without a spike that stays"
    return Verdict(
        NAME, Status.PASS, sentence, (fall,), {"fall of the loss, in nats": noise_of(losses)}, evidence=evidence
    )


def find_nonfinite(records: Sequence[LogRecord]) -> Finding | None:
    """The first NaN or infinity."""
    for record in records:
        for name, value in (("loss", record.loss), ("gradient norm", record.grad_norm)):
            if value is not None and not math.isfinite(value):
                return Finding(f"the {name} of step {record.step} is {value}", f"step {record.step}", Pattern.PRECISION)
    return None


def find_spike(records: Sequence[LogRecord]) -> Finding | None:
    """A loss far above the steps before it, that has not come back within a window."""
    losses = [record.loss or 0.0 for record in records]
    for index in range(WINDOW, len(losses) - WINDOW):
        before, after = losses[index - WINDOW : index], losses[index : index + WINDOW]
        allowed = median(before) + SPIKE * max(noise_of(before), 0.01 * abs(median(before)))
        if losses[index] > allowed and median(after) > allowed:
            return Finding(
                f"the loss jumps from {median(before):.3g} to {losses[index]:.3g} at step {records[index].step} "
                f"and does not come back within {WINDOW} steps",
                f"step {records[index].step}",
            )
    return None


def find_norm(records: Sequence[LogRecord]) -> Finding | None:
    """A gradient norm that explodes, or that is as good as zero while training goes on."""
    norms = [(record.step, record.grad_norm) for record in records if record.grad_norm is not None]
    if len(norms) < FEWEST:
        return None
    usual = median(norm for _, norm in norms)
    exploded = next(((step, norm) for step, norm in norms if usual > 0.0 and norm > EXPLODED * usual), None)
    if exploded is not None:
        return Finding(
            f"the gradient norm of step {exploded[0]} is {exploded[1]:.3g}, {exploded[1] / usual:.0f} times the usual",
            f"step {exploded[0]}",
        )
    first = median(norm for _, norm in norms[: WINDOW // 2])
    dead = next((step for step, norm in norms if norm <= DEAD * first), None)
    if dead is not None:
        return Finding(f"the gradient norm is dead from step {dead} on", f"step {dead}", Pattern.OBJECTIVE_SCALE)
    return None


def find_course(losses: Sequence[float], *, lr: float) -> Finding | None:
    """A loss that has risen, or not moved, between the first and the last quarter, by more than its noise."""
    if lr == 0.0:
        return None
    quarter = max(len(losses) // 4, WINDOW // 2)
    start, end = median(losses[:quarter]), median(losses[-quarter:])
    # The standard error of a median of n is about 1.25 σ/√n.
    error = 2.0 * 1.25 * noise_of(losses) / math.sqrt(quarter)
    if end > start + error:
        return Finding(f"the loss rises from {start:.3g} to {end:.3g} (noise {error:.2g})", "the whole run")
    if end >= start - error:
        return Finding(
            f"the loss stays at {start:.3g} over {len(losses)} steps (it ends at {end:.3g}, noise {error:.2g})",
            "the whole run",
            Pattern.OBJECTIVE_SCALE,
        )
    return None


def noise_of(losses: Sequence[float]) -> float:
    """The deviation between neighbouring steps, from the median of their differences: a trend does not enter."""
    steps = [abs(b - a) for a, b in pairwise(losses)]
    return NORMAL * median(steps) / math.sqrt(2.0) if steps else 0.0


def _draw(records: Sequence[LogRecord]) -> tuple[Plot, Plot]:
    steps = [float(record.step) for record in records]
    return (
        Plot("Loss", "step", "nats", (Curve("loss", steps, [record.loss for record in records]),)),
        Plot("Gradient norm", "step", "norm", (Curve("norm", steps, [r.grad_norm for r in records]),), scale="log"),
    )


def _too_short(spec: RunSpec) -> str | None:
    if spec.steps >= FEWEST:
        return None
    return f"{spec.steps} steps are too few to tell training from noise; set steps={FEWEST} or more"


CHECK = Check(NAME, "the logged curves look like training", __doc__ or "", judge, applies=_too_short)
