"""From suggestions to figures: at which place the problem stands that a fault is modelled on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.detection.case import Case
from benchmarks.detection.rates import Rate
from benchmarks.detection.split import Half, half_of_fault
from benchmarks.matching.findings import Recorded
from benchmarks.matching.views import KNOWLEDGE, Asked, View, describe
from checks.catalogue.problem import load_problems, load_recurrences
from checks.faults import fault
from checks.matching.described import Candidate, Decided, Described, list_candidates, name_software
from checks.matching.match import LOOKED_AT, Matcher
from checks.matching.signature import read_signature
from checks.verdict import Pattern

FIRST, FIVE = 1, 5
FIRST_BAR, FIVE_BAR = 0.60, 0.85
"""Wanted of the half that nothing was tuned on."""


@dataclass(frozen=True)
class Placed:
    """Where a problem stands among the suggestions of one finding, as it is where no check failed.

    `place`: of the problem, None where it is not among the LOOKED_AT best; `kin`: the best place of it or of a problem
    of its recurrence group, the same fault in another framework or model. `shown`: the first five suggestions;
    `reasons`: those of the first.
    """

    check: str = ""
    place: int | None = None
    kin: int | None = None
    shown: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultMatch:
    """One fault, matched in one of the ways in which the benchmark asks."""

    slug: str
    problem: str
    view: View
    knowledge: str
    asked: Asked
    rivals: int
    """problems of what a run of the problem's framework uses: those that a guess would be among"""
    placed: Placed

    @property
    def half(self) -> Half:
        return half_of_fault(self.slug)

    @property
    def pattern(self) -> Pattern:
        return fault(self.slug).pattern

    def within(self, count: int) -> bool:
        return self.placed.place is not None and self.placed.place <= count

    def kin_within(self, count: int) -> bool:
        return self.placed.kin is not None and self.placed.kin <= count


@dataclass(frozen=True)
class Stability:
    """Signatures of runs that differ in their seed alone: of `compared` failing verdicts `equal` have the same key."""

    compared: int
    equal: int
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Recognition:
    """Findings of a second seed, where those of the first were decided: of `asked` so many `right` come first."""

    asked: int
    right: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Scores:
    """All places, and which faults could not count: without a public problem, or never in force."""

    matches: tuple[FaultMatch, ...]
    without_problem: tuple[str, ...]
    not_in_force: tuple[str, ...]
    stability: Stability
    recognition: Recognition

    def of(
        self,
        half: Half,
        view: View,
        pattern: Pattern | None = None,
        *,
        knowledge: str = KNOWLEDGE[0].name,
        asked: Asked = Asked.RIGHT,
    ) -> list[FaultMatch]:
        wanted = (half, view, knowledge, asked)
        return [
            each
            for each in self.matches
            if (each.half, each.view, each.knowledge, each.asked) == wanted and pattern in (None, each.pattern)
        ]

    def shortfalls(self, asked: Asked = Asked.RIGHT) -> tuple[str, ...]:
        """The bars that the held-out half misses, told the framework of the problem."""
        held = self.of("held out", View.MODELLED, asked=asked)
        rates = (("first suggestion right", FIRST, FIRST_BAR), ("first five right", FIVE, FIVE_BAR))
        return tuple(
            f"{what} {rate} is under {bar:.0%}"
            for what, count, bar in rates
            if (rate := rate_of(each.within(count) for each in held)).total and rate.value < bar
        )


def rate_of(hits: Iterable[bool]) -> Rate:
    listed = list(hits)
    return Rate(sum(listed), len(listed))


def score(cases: Sequence[Case], recorded: Mapping[tuple[str, int], Recorded]) -> Scores:
    """Match every fault that has a problem and was in force in the run of seed 0."""
    candidates = list_candidates(load_problems(), load_recurrences())
    by_slug = {each.slug: each for each in candidates}
    matchers = [(each.name, Matcher(candidates, weights=each.weights)) for each in KNOWLEDGE]
    rivals = {each.slug: _count_rivals(each, candidates) for each in candidates}
    matches: list[FaultMatch] = []
    without, idle = [], []
    for case in cases:
        found = recorded.get((case.name, 0))
        if found is None or case.fault is None:
            continue
        problem = fault(case.fault).problem
        if problem is None:
            without.append(case.fault)
        elif not found.took_effect:
            idle.append(case.fault)
        else:
            for name, matcher in matchers:
                for view, asked in product(View, Asked):
                    finding = describe(found, case, by_slug[problem].problem, view, asked)
                    placed = _place(finding, by_slug[problem], matcher, by_slug)
                    matches.append(FaultMatch(case.fault, problem, view, name, asked, rivals[problem], placed))
    recognition = _recognise(cases, recorded, matchers[0][1], by_slug)
    return Scores(tuple(matches), tuple(without), tuple(idle), _compare_seeds(recorded), recognition)


def _place(finding: Described | None, truth: Candidate, matcher: Matcher, by_slug: Mapping[str, Candidate]) -> Placed:
    if finding is None:
        return Placed()
    started = time.process_time()
    matcher.suggest(finding)
    seconds = time.process_time() - started
    suggestions = matcher.suggest(finding, most=LOOKED_AT)
    places = {each.slug: place for place, each in enumerate(suggestions, 1)}
    kin = [place for slug, place in places.items() if _is_kin(by_slug[slug], truth)]
    return Placed(
        check=finding.signature.check,
        place=places.get(truth.slug),
        kin=min(kin, default=None),
        shown=tuple(each.slug for each in suggestions[:FIVE]),
        reasons=suggestions[0].reasons if suggestions else (),
        seconds=seconds,
    )


def _count_rivals(truth: Candidate, candidates: Sequence[Candidate]) -> int:
    software = name_software(truth.problem.framework)
    return sum(each.problem.framework in software for each in candidates)


def _is_kin(candidate: Candidate, truth: Candidate) -> bool:
    return candidate.slug == truth.slug or not {group.name for group in candidate.groups}.isdisjoint(
        group.name for group in truth.groups
    )


def _compare_seeds(recorded: Mapping[tuple[str, int], Recorded]) -> Stability:
    compared, equal, changed = 0, 0, []
    for (case, seed), other in recorded.items():
        first = recorded.get((case, 0))
        if seed == 0 or first is None:
            continue
        keys = {each["check"]: read_signature(each).key for each in first.failures}
        for each in other.failures:
            if each["check"] in keys:
                same = read_signature(each).key == keys[each["check"]]
                compared, equal = compared + 1, equal + same
                changed += [] if same else [f"{case}: {each['check']}"]
    return Stability(compared, equal, tuple(changed))


def _recognise(
    cases: Sequence[Case],
    recorded: Mapping[tuple[str, int], Recorded],
    matcher: Matcher,
    by_slug: Mapping[str, Candidate],
) -> Recognition:
    """Decide the finding of every fault's first run, then ask about those of the second."""

    def read(case: Case, seed: int) -> tuple[Described, str] | None:
        found = recorded.get((case.name, seed))
        slug = None if case.fault is None else fault(case.fault).problem
        if found is None or not found.took_effect or slug is None:
            return None
        finding = describe(found, case, by_slug[slug].problem, View.GIVEN, Asked.RIGHT)
        return None if finding is None else (finding, slug)

    known = [(case.name, each) for case in cases if (each := read(case, 0)) is not None]
    decided = [Decided(finding.signature.key, slug, name) for name, (finding, slug) in known]
    asked, wrong = 0, []
    for case in cases:
        again = read(case, 1)
        if again is not None:
            asked += 1
            first = matcher.suggest(again[0], decided=decided)[0].slug
            wrong += [] if first == again[1] else [f"{case.fault}: {first} comes first, not {again[1]}"]
    return Recognition(asked, asked - len(wrong), tuple(wrong))
