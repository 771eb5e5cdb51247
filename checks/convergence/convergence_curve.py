"""The loss of every step stays in the band of right runs over the same rows, in the same order.

Reference: the float64 model (the plain one where there is one) trained by an optimizer written here, on the batches
that the rows' fingerprints name in the data set; and the same in the run's own precision, several times, each with
other roundings of the initial weights, another layout of the batch or another attention kernel. Their spread up to a
step is the band of that step. From the first step on at which the run's precision does not decide which expert a token
takes, the band is that of runs that choose otherwise. The verdict states its power: the smallest relative change of
the learning rate that leaves the band, computed by training with it.
This is the weakest level all the same: a curve is one number a step, an optimizer that normalises hides the scale of
its gradients, and a wrong run may stay in the band. It is here because it watches what the exact checks do not: every
step between the two that are captured.
Catches: updates that are lost or made twice in single steps, a schedule that is not the logged one, state that decays
between steps, weights that something else overwrites (`verl-weight-sync-tied-to-cache-flag` in a trainer), a loss that
is logged otherwise than it is trained (`hf-ga-mean-of-means`).
Cannot see: what leaves the loss in the band (the limits are printed), and whether the rows are those that should have
been trained on (`data.coverage`, `data.template`).
Cost: about ten trainings of the reference over all steps: some 15 seconds for 20 steps of a tiny model. Beyond a
budget of steps times parameters it is inconclusive.
"""

from __future__ import annotations

from checks.check import Check, inconclusive
from checks.convergence.band import Comparison, NoCurve, collect_evidence, compare_curve, find_limits, say_power
from checks.material import Material
from checks.spec import RunSpec
from checks.verdict import Pattern, Status, Verdict

NAME = "convergence.curve"

FEWEST = 20
"""Steps below which the checks of single steps, which are sharper, have seen most of the run."""


def judge(material: Material) -> Verdict:
    capture, trajectory = material.capture, material.trajectory
    if capture is None or trajectory is None:
        return inconclusive(NAME, material.no_trajectory or material.why_not())
    try:
        comparison = compare_curve(capture, trajectory)
    except NoCurve as error:
        return inconclusive(NAME, str(error))
    evidence = collect_evidence(comparison)
    limits = find_limits(trajectory)
    measurements = (
        comparison.measure(1, "loss of step 1"),
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
    sentence = (
        f"the losses of {len(comparison.logged)} steps stay in the band of {len(trajectory.runs)} runs of the "
        f"reference; {say_power(trajectory)}"
    )
    if power is None or power.rate is None:
        return inconclusive(NAME, sentence, measurements=measurements, evidence=evidence)
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
        f"{found}; the {step - 1} before are right, so that an update up to step {step - 1} was not the optimizer's "
        "(see step.update for the captured ones)"
    )


def _too_short(spec: RunSpec) -> str | None:
    if spec.steps >= FEWEST:
        return None
    return f"{spec.steps} steps are watched by the checks of single steps; set steps={FEWEST} or more for a curve"


CHECK = Check(
    NAME,
    "the loss of every step stays in the band of right runs",
    __doc__ or "",
    judge,
    applies=_too_short,
)
