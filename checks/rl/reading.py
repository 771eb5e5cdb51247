"""The scalars of one captured step beside their definition, and what else they might be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from checks.diagnosis.signatures import Signature
from checks.tolerance import EPSILON
from checks.verdict import Measurement, Pattern

ROUND_OFF: Mapping[str, float] = {
    "torch.float64": 2.0**-53,
    "torch.float32": 2.0**-24,
    "torch.bfloat16": 2.0**-9,
    "torch.float16": 2.0**-11,
}
"""Of the dtype that a loss is computed in."""

LEAST_CHANGE = 4.0
"""Allowances by which another objective must lie apart from the definition to be named."""


class NoComparison(ValueError):
    """A captured step's losses cannot be held against their definition; `str()` is the reason."""


@dataclass(frozen=True)
class Alternative:
    """Another objective: `scalars`, what it would give each micro-batch, by index; `slack`: of allowances."""

    signature: Signature
    scalars: Mapping[int, float]
    slack: float = 2.0


@dataclass(frozen=True)
class LossReading:
    """One step's micro-batches by index. `limits`: what of the objective → the smallest relative error of it that would
    have shown; `wrong`: what the batch itself says is not as it must be, whatever the loss is; `rows`: for a page.
    """

    step: int
    found: Mapping[int, float]
    expected: Mapping[int, float]
    allowed: Mapping[int, float]
    limits: Mapping[str, float]
    alternatives: Sequence[Alternative]
    described: str
    rows: Sequence[Mapping[str, object]] = ()
    wrong: Signature | None = None
    left_out: int = 0
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return self.wrong is None and all(
            abs(self.found[index] - self.expected[index]) <= self.allowed[index] for index in self.found
        )

    def measure(self, multiple: float) -> tuple[Measurement, ...]:
        return tuple(
            Measurement(
                f"loss of step {self.step}, micro-batch {index}",
                abs(found - self.expected[index]),
                self.allowed[index],
                abs(found - self.expected[index]) <= self.allowed[index],
                self.allowed[index] / multiple,
                self.allowed[index] * (1.0 + 1.0 / multiple),
                unit="nats",
            )
            for index, found in self.found.items()
        )

    def explain(self) -> Signature:
        """The first other objective that gives every micro-batch's scalar; else the largest deviation in numbers."""
        if self.wrong is not None:
            return self.wrong
        for one in self.alternatives:
            if self._tells(one) and self._fits(one):
                return one.signature
        index = max(self.found, key=lambda each: abs(self.found[each] - self.expected[each]) / self.allowed[each])
        return Signature(
            f"the loss of micro-batch {index} is {self.found[index]:.6g}, and the definition gives "
            f"{self.expected[index]:.6g} (allowed {self.allowed[index]:.2g}): another objective",
            Pattern.OBJECTIVE_SCALE,
            "loss",
        )

    def _fits(self, one: Alternative) -> bool:
        return all(
            index in one.scalars
            and math.isfinite(one.scalars[index])
            and abs(found - one.scalars[index]) <= one.slack * self.allowed[index]
            for index, found in self.found.items()
        )

    def _tells(self, one: Alternative) -> bool:
        """Whether the alternative is another objective on these rows at all."""
        return any(
            abs(one.scalars.get(index, math.nan) - self.expected[index]) > LEAST_CHANGE * self.allowed[index]
            for index in self.found
        )


def name_scaled(expected: Mapping[int, float], *, micro_batches: int, units: str, count: int) -> list[Alternative]:
    """The definition with another denominator: undivided, divided twice, or added up over the step's units."""
    found = []
    if micro_batches > 1:
        found.append(
            _scale(
                expected,
                float(micro_batches),
                f"the loss is not divided over the accumulation: each micro-batch has {micro_batches} times its share",
            )
        )
        found.append(
            _scale(
                expected,
                1.0 / micro_batches,
                f"the loss is divided over the accumulation twice: each micro-batch has 1/{micro_batches} of its share",
            )
        )
    if count > 1 and count != micro_batches:
        sentence = f"the losses of the {units} are added up and not averaged over the step's {count}"
        found.append(_scale(expected, float(count), sentence))
    return found


def _scale(expected: Mapping[int, float], factor: float, sentence: str) -> Alternative:
    scalars = {index: value * factor for index, value in expected.items()}
    signature = Signature(sentence, Pattern.OBJECTIVE_SCALE, "loss denominator")
    return Alternative(signature, scalars, slack=2.0 * max(factor, 1.0))


def round_off(dtype: str | None, precision: str) -> float:
    """Of the scalar's own dtype, at least that of float32; of the run's where it was not recorded."""
    return ROUND_OFF.get(dtype or "", EPSILON[precision])
