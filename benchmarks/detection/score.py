"""From results to figures: what was seen of each fault, what was cried out over healthy runs, by half."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.detection.case import Case
from benchmarks.detection.expected import EXPECTED, Expected
from benchmarks.detection.rates import Rate
from benchmarks.detection.result import CaseResult, CheckResult
from benchmarks.detection.split import Half, half_of_family, half_of_fault
from checks.faults import Fault, fault
from checks.verdict import Pattern, Status

PRECISION = "float32"
"""The precision that the bars hold for; in bf16 many subtle faults drown."""
DETECTED, PLACED, NAMED = 0.95, 0.90, 0.85
"""The bars of the half that is held out: faults detected, right module or stage, first-named pattern right."""


@dataclass(frozen=True)
class FaultScore:
    """What was said of one fault. `why`: what is not as it must be, empty where all is."""

    case: str
    slug: str
    half: Half
    pattern: Pattern
    precision: str
    in_force: bool
    detected: bool
    right_check: bool
    right_place: bool
    right_pattern: bool
    why: str


@dataclass(frozen=True)
class HealthyScore:
    """What was said of one healthy run. `repeats`: another variant that computed bitwise the same."""

    case: str
    half: Half
    precision: str
    alarms: tuple[str, ...]
    inconclusive: tuple[str, ...]
    repeats: str | None
    broken: str | None


@dataclass(frozen=True)
class CheckCost:
    """What one check cost over all cases, and what it said of healthy ones."""

    check: str
    judged: int
    seconds: float
    """mean over the cases"""
    megabytes: float
    """mean size of the captures that it reads"""
    healthy: int
    alarms: int
    inconclusive: int


@dataclass(frozen=True)
class Scores:
    """All figures of the benchmark."""

    faults: tuple[FaultScore, ...]
    healthy: tuple[HealthyScore, ...]
    costs: tuple[CheckCost, ...]
    seconds: float

    def faults_of(
        self, half: Half, pattern: Pattern | None = None, *, precision: str | None = None
    ) -> list[FaultScore]:
        """Faults that were in force."""
        return [
            score
            for score in self.faults
            if score.half == half
            and score.in_force
            and pattern in (None, score.pattern)
            and precision in (None, score.precision)
        ]

    def healthy_of(self, half: Half, *, precision: str | None = None) -> list[HealthyScore]:
        """Healthy runs that count as evidence: bitwise different, and judged."""
        return [
            score
            for score in self.healthy
            if score.half == half
            and score.repeats is None
            and score.broken is None
            and precision in (None, score.precision)
        ]

    def shortfalls(self) -> tuple[str, ...]:
        """The bars that the half not calibrated on misses in float32, in words."""
        faults = self.faults_of("held out", precision=PRECISION)
        alarms = [score.case for score in self.healthy_of("held out", precision=PRECISION) if score.alarms]
        found = [
            f"{what} {rate} is under {bar:.0%}"
            for what, bar, rate in (
                ("detected", DETECTED, rate_of(s.detected for s in faults)),
                ("right module or stage", PLACED, rate_of(s.right_place for s in faults)),
                ("first-named pattern", NAMED, rate_of(s.right_pattern for s in faults)),
            )
            if rate.total and rate.value < bar
        ]
        found += [f"false alarm: {case}" for case in alarms]
        found += [f"never in force: {score.case}" for score in self.faults if not score.in_force]
        found += [f"broken: {score.case}: {score.broken}" for score in self.healthy if score.broken]
        return tuple(found)


def rate_of(hits: Iterable[bool]) -> Rate:
    """How many of them hold."""
    listed = list(hits)
    return Rate(sum(listed), len(listed))


def score(cases: Sequence[Case], results: Mapping[str, CaseResult]) -> Scores:
    """Score every case that has a result."""
    judged = [(case, results[case.name]) for case in cases if case.name in results]
    faults = tuple(score_fault(case, result) for case, result in judged if case.fault is not None)
    healthy = tuple(_score_healthy([(case, result) for case, result in judged if case.fault is None]))
    return Scores(faults, healthy, tuple(_measure_costs(judged)), sum(result.seconds for _, result in judged))


def score_fault(case: Case, result: CaseResult) -> FaultScore:
    """Compare what was said of a fault with what must be."""
    assert case.fault is not None
    injected = fault(case.fault)
    expected = EXPECTED[case.fault]
    failures = result.failures
    right = [check for check in failures if check.check in expected.checks_of(injected)]
    placed = _find_place(expected, failures, right)
    first = next((check for check in failures if check.pattern is not None), None)
    named = first is not None and first.named is injected.pattern
    return FaultScore(
        case=case.name,
        slug=case.fault,
        half=half_of_fault(case.fault),
        pattern=injected.pattern,
        precision=case.precision,
        in_force=result.took_effect is True,
        detected=bool(failures),
        right_check=bool(right),
        right_place=placed is not None,
        right_pattern=named,
        why=_explain(injected, expected, result, right=bool(right), placed=placed is not None, first=first),
    )


def _find_place(
    expected: Expected, failures: Sequence[CheckResult], right: Sequence[CheckResult]
) -> CheckResult | None:
    if not expected.where:
        return right[0] if right else None
    return next((check for check in failures if re.search(expected.where, check.first_wrong or "")), None)


def _explain(
    injected: Fault, expected: Expected, result: CaseResult, *, right: bool, placed: bool, first: CheckResult | None
) -> str:
    if result.broken is not None:
        return result.broken
    if not result.took_effect:
        return "the fault was never in force"
    if not result.failures:
        unsure = [check.check for check in result.checks if check.status == Status.INCONCLUSIVE.value]
        return f"no check fails (inconclusive: {', '.join(unsure) or 'none'})"
    parts = []
    if not right:
        failed = ", ".join(check.check for check in result.failures)
        parts.append(f"{failed} fails, not {' or '.join(expected.checks_of(injected))}")
    if not placed:
        named = ", ".join(f"{check.first_wrong}" for check in result.failures)
        parts.append(f"named {named}, not {expected.where or 'its stage'}")
    if first is None:
        parts.append("no pattern is named")
    elif first.named is not injected.pattern:
        parts.append(f"{first.check} names {first.pattern}, not {injected.pattern.value}")
    return "; ".join(parts)


def _score_healthy(judged: Sequence[tuple[Case, CaseResult]]) -> Iterator[HealthyScore]:
    first: dict[str, str] = {}
    for case, result in judged:
        repeats = None
        if result.fingerprint is not None:
            seen = first.setdefault(result.fingerprint, case.name)
            repeats = None if seen == case.name else seen
        yield HealthyScore(
            case=case.name,
            half=half_of_family(case.family),
            precision=case.precision,
            alarms=tuple(check.check for check in result.checks if check.status in ALARMS),
            inconclusive=tuple(check.check for check in result.checks if check.status == Status.INCONCLUSIVE.value),
            repeats=repeats,
            broken=result.broken,
        )


ALARMS = (Status.FAIL.value, Status.ERROR.value)
"""A judge that breaks on a healthy run is an alarm too."""


def _measure_costs(judged: Sequence[tuple[Case, CaseResult]]) -> Iterator[CheckCost]:
    rows: dict[str, list[tuple[Case, CheckResult]]] = defaultdict(list)
    for case, result in judged:
        for check in result.checks:
            rows[check.check].append((case, check))
    for name, entries in rows.items():
        healthy = [check for case, check in entries if case.fault is None]
        yield CheckCost(
            check=name,
            judged=len(entries),
            seconds=sum(check.seconds for _, check in entries) / len(entries),
            megabytes=sum(check.megabytes for _, check in entries) / len(entries),
            healthy=len(healthy),
            alarms=sum(check.status in ALARMS for check in healthy),
            inconclusive=sum(check.status == Status.INCONCLUSIVE.value for check in healthy),
        )
