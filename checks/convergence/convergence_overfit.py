"""A single batch, trained on again and again, is memorised as far as the reference memorises it.

Reference: the float64 model trained by an optimizer written here on the same rows, 30 steps at a constant rate, with
the band of its runs in the run's own precision (see `convergence.curve`). The framework is given a data file with the
first `batch` rows of the data and nothing else.
The weakest level: a wrong gradient memorises a batch too, more slowly, and only the distance from the reference tells.
It needs no trust in a data set's order, and what it finds nobody can put down to the data.
Catches: updates that are lost, parameters that are not trained, a loss that stops falling, an objective whose gradient
is not its own (`titan-rl-zero-grad-each-microbatch`).
Cannot see: accumulation and schedules, which it leaves out; what the reference's band covers (the limits are printed).
Cost: one more run of the framework, of 30 steps, and about ten trainings of the reference over them.
"""

from __future__ import annotations

from collections.abc import Sequence

from checks.check import Check, inconclusive
from checks.convergence.band import Comparison, NoCurve, collect_evidence, compare_curve, find_limits, say_power
from checks.material import Material
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "convergence.overfit"

MEMORISED = 0.7
"""Of its first loss, what the reference must come under for the batch to count as learned at all."""

USEFUL = 0.5
"""Of the reference's fall, what a band may be wide at the end; beyond it a run that learned little would pass."""

WINDOW = 5
"""Steps of a plateau."""
FLAT = 0.1
"""Of the reference's fall over the same steps, under which the framework's is a plateau."""


def judge(material: Material) -> Verdict:
    capture, trajectory = material.capture_of(Role.OVERFIT), material.overfit
    if capture is None or trajectory is None:
        return inconclusive(NAME, material.no_overfit or "the run on one batch left no capture; see run.completes")
    start, end = trajectory.exact[0], trajectory.exact[-1]
    if not end <= MEMORISED * start:
        sentence = f"the reference itself only comes from {start:.3g} to {end:.3g} in {len(trajectory.exact)} steps"
        return inconclusive(NAME, f"{sentence}; set a higher lr")
    try:
        comparison = compare_curve(capture, trajectory)
    except NoCurve as error:
        return inconclusive(NAME, str(error))
    steps = len(comparison.logged)
    last = comparison.measure(steps, f"loss of step {steps}")
    plateau = find_plateau(comparison.logged, trajectory.exact, trajectory.allowed)
    measurements = (
        last,
        Measurement("steps of a plateau", float(WINDOW if plateau else 0), 0.0, plateau is None, unit="count"),
    )
    evidence = {**collect_evidence(comparison), "plateau_from": plateau}
    limits = find_limits(trajectory)
    status = Status.PASS if last.holds and plateau is None else Status.FAIL
    if status is Status.PASS and last.threshold > USEFUL * (start - end):
        sentence = "right runs part by more than half of what is learned in this precision; use float32"
        return inconclusive(NAME, sentence, measurements=measurements, evidence=evidence)
    return Verdict(
        NAME,
        status,
        _describe(comparison, say_power(trajectory)) if status is Status.PASS else _blame(comparison, plateau),
        measurements,
        limits,
        shared_code=trajectory.shared,
        pattern=_find_pattern(comparison) if status is Status.FAIL else None,
        first_wrong=f"loss of step {comparison.first_out or plateau}" if status is Status.FAIL else None,
        evidence=evidence,
    )


def find_plateau(logged: Sequence[float], exact: Sequence[float], allowed: Sequence[float]) -> int | None:
    """The first step, from 1, from which the loss stays for `WINDOW` steps while the reference's clearly falls."""
    for start in range(len(logged) - WINDOW):
        stop = start + WINDOW
        fall, right = logged[start] - logged[stop], exact[start] - exact[stop]
        if right > allowed[start] + allowed[stop] and fall < FLAT * right:
            return start + 1
    return None


def _describe(comparison: Comparison, power: str) -> str:
    exact = comparison.trajectory.exact
    return (
        f"{len(exact)} steps on one batch take the loss from {comparison.logged[0]:.4g} to "
        f"{comparison.logged[-1]:.4g}, as they do the reference's ({exact[-1]:.4g}); {power}"
    )


def _blame(comparison: Comparison, plateau: int | None) -> str:
    exact, steps = comparison.trajectory.exact, len(comparison.logged)
    found = (
        f"{steps} steps on one batch take the loss to {comparison.logged[-1]:.4g}, the reference's to {exact[-1]:.4g} "
        f"(allowed {comparison.trajectory.allowed[-1]:.1g})"
    )
    if plateau is not None:
        found += f"; it stays from step {plateau} to {plateau + WINDOW} while the reference's falls"
    if comparison.first_out is not None and comparison.first_out > 1:
        found += f"; the first {comparison.first_out - 1} losses are right"
    return found


def _find_pattern(comparison: Comparison) -> Pattern | None:
    """A loss that is wrong before any update says nothing of the updates."""
    return None if comparison.first_out == 1 else Pattern.OBJECTIVE_SCALE


def _cannot_learn(spec: RunSpec) -> str | None:
    return "with lr=0 nothing is learned" if spec.lr == 0.0 else None


CHECK = Check(
    NAME,
    "one batch is memorised as far as the reference memorises it",
    __doc__ or "",
    judge,
    roles=(Role.OVERFIT,),
    applies=_cannot_learn,
)
