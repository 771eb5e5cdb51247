"""Which problems a finding may be: each suggestion with a score and the reasons for it.

A finding with the same signature that a person decided comes first. Behind it problems are ordered by where they sit
(installed releases, framework, component, stage, pattern, model) and by shared words. A fault of the same kind in
another framework is suggested too, behind one of the framework itself that fits as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from checks.catalogue.exposure import Exposure, Standing, assess
from checks.catalogue.families import concerns
from checks.matching.column import Column
from checks.matching.described import Candidate, Decided, Described
from checks.matching.query import weigh_terms
from checks.matching.reasons import explain
from checks.matching.subjects import Subject, catching_checks, join_subjects, subject_of
from checks.matching.vocabulary import list_terms
from checks.matching.weights import DEFAULT, Weights
from checks.matching.words import WordIndex

MOST = 5
"""Suggestions of one finding, unless more are asked for."""
LOOKED_AT = 200
"""Problems whose releases and models are compared: those that are ahead by everything else."""
SIGNATURE = 1000.0
"""Of a finding with the same signature that was decided: more than all other reasons together."""


class Basis(StrEnum):
    """What a suggestion rests on."""

    SIGNATURE = "same signature"
    SOFTWARE = "same software"
    KIND = "same kind of fault"
    """the problem is known of another framework"""


@dataclass(frozen=True)
class Suggestion:
    """A problem that a finding may be, its score (comparable within one finding only), and why."""

    slug: str
    score: float
    basis: Basis
    reasons: tuple[str, ...]


class Matcher:
    """The problems, prepared once for any number of findings."""

    def __init__(self, candidates: Sequence[Candidate], *, weights: Weights = DEFAULT) -> None:
        self._candidates = tuple(candidates)
        self._weights = weights
        self._words = WordIndex(self._candidates)
        self._numbers = {each.slug: number for number, each in enumerate(self._candidates)}
        problems = [each.problem for each in self._candidates]
        self._patterns = Column([each.pattern.value for each in problems])
        self._stages = Column([each.stage for each in problems])
        self._components = Column([each.component for each in problems])
        self._frameworks = Column([each.framework for each in problems])
        self._named = _number_named(self._numbers)

    def suggest(
        self,
        finding: Described,
        *,
        decided: Iterable[Decided] = (),
        rejected: Collection[str] = (),
        most: int = MOST,
    ) -> tuple[Suggestion, ...]:
        """The best problems, the first one first; `rejected`: slugs that a person said it is not."""
        query = weigh_terms(finding, self._weights)
        scores = self._score_all(finding, query)
        same = self._find_decided(finding, decided)
        for number, labels in same.items():
            scores[number] += SIGNATURE * len(labels) / sum(map(len, same.values()))
        left_out = [self._numbers[slug] for slug in rejected if slug in self._numbers]
        scores[left_out] = -np.inf
        ahead = np.argsort(-scores, kind="stable")[:LOOKED_AT]
        standings = {int(number): self._stand(finding, int(number)) for number in ahead}
        for number, standing in standings.items():
            scores[number] += self._weigh_place(finding, number, standing)
        best = sorted((number for number in standings if np.isfinite(scores[number])), key=lambda n: (-scores[n], n))
        return tuple(
            self._describe(finding, number, float(scores[number]), query, same.get(number, ()), standings[number])
            for number in best[:most]
        )

    def _score_all(self, finding: Described, query: Mapping[str, float]) -> NDArray[np.float64]:
        weights, check = self._weights, finding.signature.check
        others = {other.check for other in finding.also}
        scores = self._words.score(query)
        scores += weights.pattern * self._patterns.holds({finding.pattern})
        scores += weights.same_framework * self._frameworks.holds(finding.software)
        company = weights.company * self._weigh_subject(join_subjects(others))
        scores += np.maximum(self._weigh_subject(subject_of(check)), company)
        return scores + np.maximum(self._weigh_named({check}), weights.company * self._weigh_named(others))

    def _weigh_subject(self, subject: Subject) -> NDArray[np.float64]:
        weights = self._weights
        return weights.stage * self._stages.holds(subject.stages) + weights.component * self._components.holds(
            subject.components
        )

    def _weigh_named(self, checks: Iterable[str]) -> NDArray[np.float64]:
        """Of the problems that a check's description names among what it catches."""
        found = np.zeros(len(self._candidates))
        for check in checks:
            found[self._named.get(check, [])] = self._weights.named
        return found

    def _find_decided(self, finding: Described, decided: Iterable[Decided]) -> dict[int, tuple[str, ...]]:
        """Problem → the findings with the same signature that were decided to be it."""
        key = finding.signature.key
        found: dict[int, tuple[str, ...]] = {}
        for each in decided:
            if each.signature == key and each.slug in self._numbers:
                number = self._numbers[each.slug]
                found[number] = (*found.get(number, ()), each.finding)
        return found

    def _stand(self, finding: Described, number: int) -> Standing | None:
        return assess(self._candidates[number].problem, finding.packages) if finding.packages else None

    def _weigh_place(self, finding: Described, number: int, standing: Standing | None) -> float:
        candidate, weights = self._candidates[number], self._weights
        added = 0.0
        if standing is not None and standing.exposure is Exposure.AFFECTED:
            added += weights.affected
        if standing is not None and standing.exposure is Exposure.NOT_AFFECTED:
            added += weights.not_affected
        if candidate.problem.models and finding.model_class:
            concerned = concerns(candidate.problem.models, finding.model_class)
            added += {True: weights.model, False: weights.other_model, None: 0.0}[concerned]
        elsewhere = candidate.problem.framework not in finding.software
        if elsewhere and candidate.group_in(finding.software) is not None:
            added += weights.recurs_here
        return added

    def _describe(
        self,
        finding: Described,
        number: int,
        score: float,
        query: Mapping[str, float],
        same: Sequence[str],
        standing: Standing | None,
    ) -> Suggestion:
        candidate = self._candidates[number]
        here = candidate.problem.framework in finding.software
        basis = Basis.SIGNATURE if same else Basis.SOFTWARE if here else Basis.KIND
        said = {*list_terms(finding.sentence), *list_terms(finding.first_wrong)}
        terms = [term for term in self._words.explain(query, number) if term in said]
        return Suggestion(candidate.slug, score, basis, explain(finding, candidate, same, standing, terms))


def _number_named(numbers: Mapping[str, int]) -> dict[str, list[int]]:
    """Check → the numbers of the problems that its description names."""
    found: dict[str, list[int]] = {}
    for slug, checks in catching_checks().items():
        for check in checks:
            if slug in numbers:
                found.setdefault(check, []).append(numbers[slug])
    return found


def suggest(
    finding: Described,
    candidates: Sequence[Candidate],
    *,
    decided: Iterable[Decided] = (),
    rejected: Collection[str] = (),
    most: int = MOST,
) -> tuple[Suggestion, ...]:
    """`Matcher.suggest` of problems that are looked at once; of many findings, keep a Matcher."""
    return Matcher(candidates).suggest(finding, decided=decided, rejected=rejected, most=most)
