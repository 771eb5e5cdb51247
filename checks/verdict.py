"""What a judge returns: a three-way verdict with its numbers, thresholds, detection limit and blind spots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check ended; `error` means that Plumbline itself broke, never the framework."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    SKIPPED = "skipped"


class Pattern(StrEnum):
    """The seven failure patterns; the values are the catalogue's slugs."""

    LOSS_MASK = "loss-mask"
    OBJECTIVE_SCALE = "objective-scale"
    PARALLELISM = "parallelism"
    SEQUENCE_LENGTH = "sequence-length"
    MODEL_DEFINITION = "model-definition"
    STATE_TRANSFER = "state-transfer"
    PRECISION = "precision"


@dataclass(frozen=True)
class Measurement:
    """One number that was compared.

    `value`, `floor`, `threshold` and `limit` share a unit: relative error unless `unit` says otherwise. `limit` is the
    smallest fault that would have crossed the threshold. `holds` is what the comparison said.
    """

    name: str
    value: float
    threshold: float
    holds: bool
    floor: float | None = None
    limit: float | None = None
    block: str | None = None
    unit: str = "relative error"


@dataclass(frozen=True)
class Verdict:
    """One check's answer, complete enough to be read without the capture."""

    check: str
    status: Status
    sentence: str
    measurements: tuple[Measurement, ...] = ()
    detection_limits: Mapping[str, float] = field(default_factory=dict)
    """block → the smallest relative fault that this run would have seen there"""
    shared_code: tuple[str, ...] = ()
    """code that the framework and the reference have in common: the check is blind to it"""
    pattern: Pattern | None = None
    first_wrong: str | None = None
    """module path, parameter or setting where the fault starts"""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """JSON values for pages and reports"""
    elapsed_s: float = 0.0

    @property
    def detection_limit(self) -> float | None:
        """The largest of the limits by block: what the weakest block would have let through."""
        return max(self.detection_limits.values(), default=None)
