"""The loss of every step stays in the band of right runs over the same rows, in the same order.

Reference: the float64 model (the plain one where there is one) trained by an optimizer written here, on the batches
that the rows' fingerprints name in the data set; and the same in the run's own precision, several times, each with
other roundings of the initial weights, another layout of the batch or another attention kernel. Their spread up to a
step is the band of that step. From the first step on at which the run's precision does not decide which expert a token
takes, the band is that of runs that choose otherwise. The verdict states its power: the smallest relative change of
the learning rate that leaves the band, computed by training with it.
This is the weakest level all the same: a curve is one number a step, an optimizer that normalises hides the scale of
its gradients, and a wrong run may stay in the band. It is here because it watches what the exact checks do not: the
gradients of every step but the first, and what becomes of the weights between two that are captured.
Of fewer than 20 steps the curve is watched all the same, where the log, the data and the budget let it be, and up to
the first choice of an expert that the precision leaves open; else, or where a check of single steps fails already, it
is skipped.
Catches: updates that are lost or made twice in single steps, a schedule that is not the logged one, state that decays
between steps, weights that something else overwrites (`verl-weight-sync-tied-to-cache-flag` in a trainer), a loss that
is logged otherwise than it is trained (`hf-ga-mean-of-means`).
Cannot see: what leaves the loss in the band (the limits are printed), and whether the rows are those that should have
been trained on (`data.coverage`, `data.template`).
Cost: about ten trainings of the reference over all steps: some 15 seconds for 20 steps of a tiny model. Beyond a
budget of steps times parameters it is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from checks.check import Check, inconclusive, skipped
from checks.convergence.band import Comparison, NoCurve, collect_evidence, compare_curve, find_limits, say_power
from checks.material import Material
from checks.references.budget import CURVE_STEPS
from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "convergence.curve"


def judge(material: Material) -> Verdict:
    capture, trajectory = material.capture, material.trajectory
    if capture is None or trajectory is None:
        return _leave(material, material.no_trajectory or material.why_not())
    try:
        recorded = None if material.spec.steps >= CURVE_STEPS else _read_recorded(material)
        comparison = compare_curve(capture, trajectory, recorded=recorded)
    except NoCurve as error:
        return _leave(material, str(error))
    evidence = collect_evidence(comparison)
    limits = find_limits(trajectory)
    measurements = (
        *((comparison.measure(1, "loss of step 1"),) if 1 not in comparison.unknown else ()),
        comparison.measure(comparison.worst, f"loss of step {comparison.worst}, the furthest"),
    )
    if comparison.first_out is not None:
        return Verdict(
            NAME,
            Status.FAIL,
            _describe_failure(comparison),
            measurements,
            limits,
            shared_code=trajectory.shared,
            pattern=None if comparison.first_out == 1 else Pattern.OBJECTIVE_SCALE,
            first_wrong=f"loss of step {comparison.first_out}",
            evidence=evidence,
        )
    power = trajectory.power
    known = len(comparison.logged) - len(comparison.unknown)
    sentence = (
        f"the losses of {known} steps stay in the band of {len(trajectory.runs)} runs of the reference; "
        f"{say_power(trajectory)}"
    )
    if power is None or power.rate is None:
        return _leave(material, sentence, measurements=measurements, evidence=evidence)
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, shared_code=trajectory.shared, evidence=evidence)


def _describe_failure(comparison: Comparison) -> str:
    step = comparison.first_out
    assert step is not None
    trajectory = comparison.trajectory
    found = (
        f"the loss leaves the band in step {step}: {comparison.logged[step - 1]:.7g}, the reference on the same rows "
        f"has {trajectory.exact[step - 1]:.7g} (allowed {trajectory.allowed[step - 1]:.1g})"
    )
    if step == 1:
        return f"{found}; no update was made yet, so that it is the loss or its log (see step.loss)"
    return (
        f"{found}; what is known of those before is right, so that an update up to step {step - 1} was not that of the "
        "step's own gradients (left over ones, for example; step.update holds the captured ones), or something else "
        "changed the weights since"
    )


def _read_recorded(material: Material) -> Mapping[int, float]:
    """Captured step → the mean of the token losses that its forwards were seen to have."""
    losses: dict[int, float] = {}
    for step, micro_batches in material.batches.items():
        seen = [(micro.token_losses_seen, micro.counted) for micro in micro_batches]
        count = sum(int(counted.sum()) for _, counted in seen)
        if count and all(token_losses is not None for token_losses, _ in seen):
            losses[step] = math.fsum(float(each[counted].sum()) for each, counted in seen if each is not None) / count
    return losses


def _leave(
    material: Material,
    why: str,
    *,
    measurements: tuple[Measurement, ...] = (),
    evidence: Mapping[str, object] | None = None,
) -> Verdict:
    """Nothing could be said: inconclusive of a run that is there for its curve, else skipped."""
    if material.spec.steps >= CURVE_STEPS:
        return inconclusive(NAME, why, measurements=measurements, evidence=evidence or {})
    return skipped(NAME, f"{why}; {material.spec.steps} steps need no curve, {CURVE_STEPS} or more do")


def leave_to_single_steps(verdicts: Mapping[str, Verdict], spec: RunSpec) -> Mapping[str, Verdict]:
    """The verdicts, that on the curve skipped where it only repeats what a check of single steps says more sharply."""
    curve = verdicts.get(NAME)
    if curve is None or curve.status is not Status.FAIL or spec.steps >= CURVE_STEPS:
        return verdicts
    failing = [each.check for each in verdicts.values() if each.status is Status.FAIL and each.check != NAME]
    if not failing:
        return verdicts
    return {**verdicts, NAME: skipped(NAME, f"{curve.first_wrong} leaves the band as well; see {failing[0]}")}


def _too_short(spec: RunSpec) -> str | None:
    return "a single step has no curve; set steps=3 or more" if spec.steps < 2 else None


CHECK = Check(
    NAME,
    "the loss of every step stays in the band of right runs",
    __doc__ or "",
    judge,
    applies=_too_short,
)
