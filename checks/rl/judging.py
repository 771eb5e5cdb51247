"""From the readings of the captured steps to one verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from checks.captures.capture import Capture
from checks.check import inconclusive
from checks.material import Material
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.reference import root_config
from checks.references.sampled import penalty_of
from checks.rl.reading import LossReading, NoComparison
from checks.spec import POLICY_OBJECTIVES
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Status, Verdict

USEFUL_LIMIT = 0.25
"""A step that would hide an error of a quarter of what the objective is made of says nothing of it."""

NEEDED: Mapping[str, str] = {
    "orpo": "beta",
    "kto": "beta",
    "reward": "margins",
    **dict.fromkeys(POLICY_OBJECTIVES, "advantages"),
}
"""Objective → what of it a step must be able to show for a pass to mean anything."""

WHAT: Mapping[str, str] = {
    "beta": "beta",
    "advantages": "the advantages",
    "ratios": "the ratios",
    "margins": "the margins",
}

Read = Callable[[Material, Capture, int], LossReading]


def judge_losses(name: str, material: Material, read: Read) -> Verdict:
    """Hold every captured step's scalars against their definition."""
    capture = material.whole
    if capture is None or not capture.steps:
        return inconclusive(name, material.why_not())
    steps: list[LossReading] = []
    open_: list[str] = []
    for number in sorted(capture.steps):
        try:
            _refuse_auxiliary(material, capture, number)
            steps.append(read(material, capture, number))
        except NoComparison as error:
            open_.append(f"step {number}: {error}")
    if not steps:
        return inconclusive(name, open_[0])
    multiple = MULTIPLES[material.spec.precision]
    measurements = tuple(m for step in steps for m in step.measure(multiple))
    limits = {key: best for key in WHAT if math.isfinite(best := _best(steps, key))}
    evidence: dict[str, object] = {
        "beta": material.spec.beta,
        "rows": [row for step in steps for row in step.rows],
        "not_judged": open_,
        **{key: value for step in steps for key, value in step.extra.items()},
    }
    first = next((step for step in steps if not step.holds), None)
    if first is None:
        return _decide(name, material, steps, open_, measurements, limits, evidence)
    signature = first.explain()
    return Verdict(
        name,
        Status.FAIL,
        f"step {first.step}: {signature.sentence}",
        measurements,
        limits,
        pattern=signature.pattern,
        first_wrong=signature.where,
        evidence=evidence,
    )


def _refuse_auxiliary(material: Material, capture: Capture, number: int) -> None:
    batches = material.batches.get(number, ())
    if AuxiliaryLoss.of(root_config(capture, number), batches) is not None:
        raise NoComparison("the config adds a load-balancing term to the loss; set router_aux_loss_coef to 0")


def _best(steps: Sequence[LossReading], key: str) -> float:
    return min((step.limits[key] for step in steps if key in step.limits), default=math.inf)


def _decide(
    name: str,
    material: Material,
    steps: Sequence[LossReading],
    open_: Sequence[str],
    measurements: tuple[Measurement, ...],
    limits: dict[str, float],
    evidence: dict[str, object],
) -> Verdict:
    numbers = [str(step.step) for step in steps]
    judged = f"steps {', '.join(numbers)}" if len(numbers) > 1 else f"step {numbers[0]}"
    spec = material.spec
    needed = NEEDED[spec.objective]
    if not limits.get(needed, math.inf) <= USEFUL_LIMIT:
        remedy = "set steps to 2 or more, and a rate that moves the weights"
        if needed == "advantages":
            remedy = "set num_generations higher, so that rewards differ in a group"
        if open_:
            remedy = f"not judged: {open_[0]}"
        elif spec.precision != "float32":
            remedy = "run with precision=float32"
        sentence = f"the losses of {judged} are as defined, but an error of {WHAT[needed]} would be within the noise"
        return inconclusive(
            name,
            f"{sentence}; {remedy}",
            measurements=measurements,
            detection_limits=limits,
            evidence=evidence,
        )
    worst = max(measurement.value for measurement in measurements)
    shown = ", ".join(f"{limits[key]:.2g} in {WHAT[key]}" for key in WHAT if limits.get(key, math.inf) <= USEFUL_LIMIT)
    sentence = (
        f"{' and '.join(step.described for step in steps)} of {judged} have the loss of the definition within "
        f"{worst:.2g}; an error of {shown} would show"
    )
    hidden = _say_hidden(material, limits)
    left = sum(step.left_out for step in steps)
    if left:
        hidden.append(f"{left} micro-batches are left out, whose experts the run's precision does not decide")
    if open_:
        hidden.append(f"not judged: {open_[0]}")
    return Verdict(name, Status.PASS, "; ".join([sentence, *hidden]), measurements, limits, evidence=evidence)


def _say_hidden(material: Material, limits: Mapping[str, float]) -> list[str]:
    """What of GRPO's objective this run could not show."""
    spec = material.spec
    if spec.objective not in POLICY_OBJECTIVES:
        return []
    said = []
    if "ratios" not in limits:
        said.append("every ratio is 1, so that neither their level nor the clip shows: set num_iterations=steps")
    elif limits["ratios"] > USEFUL_LIMIT:
        said.append("ratios are too near 1 for their level to show: set a higher rate")
    if penalty_of(spec) and limits.get("beta", math.inf) > USEFUL_LIMIT:
        said.append("the penalty is within the noise: set a higher rate or beta")
    return said
