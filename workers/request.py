"""What a validation is asked, how it reports on the way, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checks.spec import RunSpec
from checks.verdict import Status, Verdict
from workers.runner import FrameworkRun

DEFAULT_TIME_LIMIT_S = 600.0
"""For each framework run: a hundred times what a tiny model takes, and short of a person's patience."""

BAD_REQUEST = 3
"""exit code of a request that cannot be run"""


@dataclass(frozen=True)
class ValidationRequest:
    """A framework × model × data × settings × checks, as someone asked for it; nothing here is resolved yet."""

    framework: str
    model: str
    """checkpoint directory, config.json, or `tiny:<family>`"""
    data: str
    """file or saved data set, or the name of a sample that ships"""
    checks: tuple[str, ...] | None = None
    """names; None for all"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """fields of RunSpec, typed"""
    inject: str | None = None
    """slug of a fault"""
    out: Path | None = None
    """directory that keeps captures and logs; None keeps none"""
    full: bool = False
    """record whole tensors instead of sketches"""
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    """of each framework run"""
    memory_limit_bytes: int | None = None
    """of each framework run's processes together; None for no limit"""


@dataclass(frozen=True)
class Progress:
    """What is running now."""

    phase: str
    detail: str
    """what it does or waits for"""
    fraction: float | None
    """done of the whole validation; None where that cannot be told"""
    elapsed_s: float


@dataclass(frozen=True)
class PhaseTime:
    """When one phase began and how long it took; runs side by side overlap."""

    name: str
    seconds: float
    begin_s: float = 0.0
    """since the validation's start"""


@dataclass(frozen=True)
class ValidationResult:
    """Everything that was found, complete enough to be read without the captures."""

    request: ValidationRequest
    spec: RunSpec
    verdicts: tuple[Verdict, ...]
    phases: tuple[PhaseTime, ...]
    runs: tuple[FrameworkRun, ...]
    environment: Mapping[str, str]
    """package → version in the framework's process, with `python` and `platform`"""
    warnings: tuple[str, ...] = ()


def total_seconds(phases: Sequence[PhaseTime]) -> float:
    """From the first phase's begin to the last one's end; 0 where there is none."""
    if not phases:
        return 0.0
    return max(phase.begin_s + phase.seconds for phase in phases) - min(phase.begin_s for phase in phases)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """1 where any check failed; else 2 where any is an error or inconclusive, or nothing passed; else 0."""
    statuses = {verdict.status for verdict in verdicts}
    if Status.FAIL in statuses:
        return 1
    if statuses & {Status.ERROR, Status.INCONCLUSIVE} or Status.PASS not in statuses:
        return 2
    return 0
