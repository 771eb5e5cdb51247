"""The learning rate of every step is the one that the schedule defines.

Reference: the closed formula of the asked schedule, with its warm-up, over the asked number of steps; held against
what the framework logged for each step, and against the optimizer's groups at the captured ones.
Catches: a warm-up that is off by one, a schedule stepped once a micro-batch or twice a step, over another number of
steps, restarted on resume, ignored, or with another
base rate in some group.
Cannot see: steps that the framework did not log between captured ones.
Cost: nothing beyond the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.schedule"
TOLERANCE = 1e-6
"""Of a rate that a framework may keep in float32."""


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    rates = list(_rates(capture))
    logged = {record.step for record in capture.log if record.learning_rate is not None}
    lines = [(step, where, rate, material.asked_rate(step)) for step, where, rate in rates]
    measurements = tuple(
        Measurement(f"{where} at step {step}", _off(rate, asked), TOLERANCE, _off(rate, asked) <= TOLERANCE)
        for step, where, rate, asked in lines
    )
    evidence = {
        "rates": [[step, where, rate, asked] for step, where, rate, asked in lines],
        "plots": to_evidence([_draw(material, capture)]),
        "schedule": material.spec.schedule,
        "warmup_steps": material.spec.warmup_steps,
    }
    wrong = [line for line, m in zip(lines, measurements, strict=True) if not m.holds]
    if wrong:
        step, where, rate, asked = wrong[0]
        sentence = (
            f"the rate of {where} at step {step} is {rate:.6g}, asked {asked:.6g} ({material.spec.schedule}"
            f"{f' after {material.spec.warmup_steps} steps of warm-up' if material.spec.warmup_steps else ''}); "
            f"{_explain(material, lines)}{len(wrong)} of {len(lines)} rates are wrong"
        )
        return Verdict(
            NAME,
            Status.FAIL,
            sentence,
            measurements,
            {"rate": TOLERANCE},
            pattern=Pattern.OBJECTIVE_SCALE,
            first_wrong=f"learning rate at step {step}",
            evidence=evidence,
        )
    unseen = set(range(1, material.total_steps + 1)) - logged - set(capture.steps)
    if unseen:
        left = f"{len(unseen)} of {material.total_steps} steps"
        sentence = f"the rates of {left} were not logged, first of step {min(unseen)}"
        return inconclusive(NAME, sentence, measurements=measurements, evidence=evidence)
    sentence = f"{len(logged | set(capture.steps))} steps have the rate that {material.spec.schedule} defines"
    return Verdict(NAME, Status.PASS, sentence, measurements, {"rate": TOLERANCE}, evidence=evidence)


def _draw(material: Material, capture: Capture) -> Plot:
    steps = [float(step) for step in range(1, material.total_steps + 1)]
    return Plot(
        "Learning rate by step",
        "step",
        "learning rate",
        (
            Curve("asked", steps, [material.asked_rate(int(step)) for step in steps]),
            Curve(
                "logged", [float(r.step) for r in capture.log], [r.learning_rate for r in capture.log], style="points"
            ),
        ),
    )


def _rates(capture: Capture) -> Iterator[tuple[int, str, float]]:
    """(step, whose, rate): what was logged, and what the optimizer's groups held."""
    for record in capture.log:
        if record.learning_rate is not None:
            yield record.step, "the log", record.learning_rate
    for step in capture.steps:
        for number, group in enumerate(capture.step(step).optimizer.groups):
            rate = group.settings.get("lr")
            if isinstance(rate, int | float) and group.parameters:
                yield step, f"group {number} of the optimizer", float(rate)


def _off(rate: float, asked: float) -> float:
    """Relative to the asked rate; 0 asked and given is right."""
    if rate == asked:
        return 0.0
    return abs(rate - asked) / abs(asked) if asked else math.inf


def _explain(material: Material, lines: list[tuple[int, str, float, float]]) -> str:
    """The shift by whole steps that would make every logged rate right, where there is one."""
    if len({asked for _, _, _, asked in lines}) < 2:
        return ""
    for shift in (1, -1, 2, -2):
        shifted = [(rate, step + shift) for step, _, rate, _ in lines if step + shift >= 1]
        if shifted and all(_off(rate, material.asked_rate(step)) <= TOLERANCE for rate, step in shifted):
            steps = f"{abs(shift)} step{'s' * (abs(shift) > 1)}"
            return f"every rate is that of {steps} {'later' if shift > 0 else 'earlier'}; "
    return ""


CHECK = Check(NAME, "every step has the learning rate that the schedule defines", __doc__ or "", judge)
