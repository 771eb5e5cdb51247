"""A logged loss curve against the band of the reference's runs: what both checks of whole curves share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.captures.capture import Capture
from checks.plot import Curve, Plot, to_evidence
from checks.references.trajectory import Trajectory, leaves
from checks.verdict import Measurement


class NoCurve(ValueError):
    """The framework did not log the loss of each step; `str()` is one sentence without a full stop."""


@dataclass(frozen=True)
class Comparison:
    """`logged`: a loss each step, in nats; `first_out`: the first step outside the band, from 1, None where none is.

    `unknown`: steps whose loss is not known; theirs is NaN, and counts neither way.
    """

    logged: tuple[float, ...]
    trajectory: Trajectory
    first_out: int | None
    unknown: frozenset[int] = frozenset()

    @property
    def worst(self) -> int:
        """The step, from 1, that comes nearest to the edge of the band or goes furthest beyond it."""
        return max(range(1, len(self.logged) + 1), key=self._ratio)

    def _ratio(self, step: int) -> float:
        if step in self.unknown:
            return -1.0
        ratio = self.error(step) / self.trajectory.allowed[step - 1]
        return math.inf if math.isnan(ratio) else ratio

    def error(self, step: int) -> float:
        """How far the logged loss is from the reference's; infinite where it is not finite, NaN where it is unknown."""
        logged = self.logged[step - 1]
        if step in self.unknown:
            return math.nan
        return abs(logged - self.trajectory.exact[step - 1]) if math.isfinite(logged) else math.inf

    def measure(self, step: int, name: str) -> Measurement:
        """The error of one step against the band."""
        allowed, floor = self.trajectory.allowed[step - 1], self.trajectory.floors[step - 1]
        error = self.error(step)
        return Measurement(name, error, allowed, error <= allowed, floor, allowed + floor, unit="nats")


def compare_curve(
    capture: Capture, trajectory: Trajectory, *, recorded: Mapping[int, float] | None = None
) -> Comparison:
    """Lay the framework's own log beside the reference's curve.

    `recorded`, of a short run: step → its loss as the capture has it, which stands in for what was not logged. Steps
    that neither has are unknown then, and so are those from the first undecided choice of an expert or a key on: how
    far chance takes a run that chooses otherwise shows in a long curve, not in two steps.

    Raises:
        NoCurve: a step's loss was not logged, and none stands in for it; or no more than the first is known.
    """
    logged = {record.step: record.loss for record in capture.log if record.loss is not None}
    by_step = {**(recorded or {}), **logged}
    steps = range(1, len(trajectory.exact) + 1)
    unlogged = next((step for step in steps if step not in by_step), None)
    if unlogged is not None and (recorded is None or max(by_step, default=0) <= 1):
        raise NoCurve("the framework logged no loss" + (f" of step {unlogged}" if by_step else ""))
    undecided = trajectory.undecided
    if recorded is not None and undecided is not None:
        by_step = {step: loss for step, loss in by_step.items() if step < undecided}
        if max(by_step, default=0) <= 1:
            raise NoCurve(
                f"the run's precision does not decide which experts or keys a token takes in step {undecided}"
            )
    unknown = frozenset(step for step in steps if step not in by_step)
    losses = tuple(by_step.get(step, math.nan) for step in steps)
    known = [trajectory.exact[step - 1] if step in unknown else losses[step - 1] for step in steps]
    return Comparison(losses, trajectory, leaves(known, trajectory.exact, trajectory.allowed), unknown)


def find_limits(trajectory: Trajectory) -> dict[str, float]:
    """The smallest relative changes that would have left the band: of the learning rate, as it was computed, and of the
    logged loss. A rate of which even a doubling stays inside has no limit.
    """
    scales = [
        (allowed + floor) / abs(loss)
        for allowed, floor, loss in zip(trajectory.allowed, trajectory.floors, trajectory.exact, strict=True)
        if loss != 0.0
    ]
    limits = {"scale of the logged loss": min(scales, default=math.inf)}
    if trajectory.power is not None and trajectory.power.rate is not None:
        limits["learning rate"] = trajectory.power.rate
    return limits


def say_power(trajectory: Trajectory) -> str:
    """What would have been seen, as part of a sentence."""
    power = trajectory.power
    if power is None:
        return "its power was not computed"
    rate = "not even a doubled learning rate" if power.rate is None else f"a learning rate off by {power.rate:.1g}"
    seen = "" if power.rate is None else " of itself"
    doubled = "; doubled gradients would" + ("" if power.gradients else " not")
    return f"{rate}{seen} would be seen{doubled}"


def collect_evidence(comparison: Comparison) -> dict[str, object]:
    """The curves with their band, the deviations, and the power."""
    trajectory = comparison.trajectory
    power = trajectory.power
    return {
        "plots": to_evidence(_draw(comparison)),
        "logged": [
            None if step in comparison.unknown else _finite(value)
            for step, value in enumerate(comparison.logged, start=1)
        ],
        "reference": list(trajectory.exact),
        "allowed": [_finite(value) for value in trajectory.allowed],
        "runs": [[_finite(value) for value in run] for run in trajectory.runs],
        "reference_model": trajectory.name,
        "undecided_from": trajectory.undecided,
        "power": _describe(power.rate, power.gradients) if power is not None else None,
    }


def _describe(rate: float | None, gradients: bool) -> Mapping[str, object]:
    return {"learning_rate": rate, "doubled_gradients_seen": gradients}


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _draw(comparison: Comparison) -> tuple[Plot, Plot]:
    trajectory = comparison.trajectory
    steps = [float(step) for step in range(1, len(comparison.logged) + 1)]
    upper = [loss + allowed for loss, allowed in zip(trajectory.exact, trajectory.allowed, strict=True)]
    lower = [loss - allowed for loss, allowed in zip(trajectory.exact, trajectory.allowed, strict=True)]
    curves = [
        Curve("logged", steps, comparison.logged, style="points"),
        Curve("reference", steps, trajectory.exact),
        Curve("upper edge of the band", steps, upper, style="threshold"),
        Curve("lower edge of the band", steps, lower, style="threshold"),
    ]
    if trajectory.power is not None and trajectory.power.rate is not None:
        curves.append(Curve(f"learning rate + {trajectory.power.rate:.1g}", steps, trajectory.power.losses))
    apart = Plot(
        "Distance from the reference",
        "step",
        "nats",
        (
            Curve("logged", steps, _positive(map(comparison.error, range(1, len(steps) + 1))), style="points"),
            Curve("spread of the reference's runs", steps, trajectory.floors, style="floor"),
            Curve("allowed", steps, trajectory.allowed, style="threshold"),
        ),
        scale="log",
    )
    return Plot("Loss", "step", "nats", tuple(curves)), apart


def _positive(values: Sequence[float] | map[float]) -> list[float | None]:
    """A logarithmic axis has no place for zero."""
    return [value if value > 0.0 else None for value in values]
