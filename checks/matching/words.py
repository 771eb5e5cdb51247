"""Which problems share words with a finding: BM25 over fields, so that a word of a title counts more than of a cause.

Robertson, Zaragoza and Taylor, "Simple BM25 extension to multiple weighted fields" (CIKM 2004,
doi:10.1145/1031171.1031181): fields are weighted before saturation, each with its own length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from checks.matching.described import Candidate
from checks.matching.vocabulary import list_terms

SATURATION = 3.0
"""k1 of BM25. A word of the title has the weight 3, so that it counts half of what it ever can."""
LENGTH = 0.5
"""b of BM25: how much a long text's words count less."""
FIELDS: Mapping[str, float] = {
    "title": 3.0,
    "symptom": 1.0,
    "root_cause": 1.0,
    "fix": 0.25,
    "place": 1.0,
    "groups": 1.0,
}
"""Field of a problem → weight of its words. `place`: component, stage, and the words of its slug."""


class WordIndex:
    """Terms → the problems that hold them; built once, and read by any number of queries at once."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        fields = [{name: list_terms(text) for name, text in read_fields(each).items()} for each in candidates]
        means = {name: _mean(len(each[name]) for each in fields) for name in FIELDS}
        found: dict[str, list[tuple[int, float]]] = {}
        for number, each in enumerate(fields):
            for term, weight in _weigh_terms(each, means).items():
                found.setdefault(term, []).append((number, weight))
        self.count = len(candidates)
        self._postings: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {
            term: (
                np.array([number for number, _ in rows]),
                _saturate([weight for _, weight in rows], self._rarity(rows)),
            )
            for term, rows in found.items()
        }

    def score(self, query: Mapping[str, float]) -> NDArray[np.float64]:
        """(problems,) float64: the sum over the query's terms, each with its weight."""
        scores = np.zeros(self.count)
        for term, weight in query.items():
            if term in self._postings:
                numbers, values = self._postings[term]
                scores[numbers] += weight * values
        return scores

    def explain(self, query: Mapping[str, float], number: int) -> dict[str, float]:
        """Term → what it adds to the score of one problem, the most first."""
        added = {}
        for term, weight in query.items():
            numbers, values = self._postings.get(term, (_NONE, _NOTHING))
            place = int(np.searchsorted(numbers, number))
            if place < len(numbers) and numbers[place] == number:
                added[term] = weight * float(values[place])
        return dict(sorted(added.items(), key=lambda item: -item[1]))

    def _rarity(self, rows: Sequence[object]) -> float:
        """Inverse document frequency, never negative (as of Lucene)."""
        return math.log1p((self.count - len(rows) + 0.5) / (len(rows) + 0.5))


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING = np.zeros(0)


def read_fields(candidate: Candidate) -> dict[str, str]:
    """The texts of a problem that are searched, by the names of FIELDS."""
    problem = candidate.problem
    return {
        "title": problem.title,
        "symptom": problem.symptom,
        "root_cause": problem.root_cause,
        "fix": problem.fix or "",
        "place": f"{problem.component} {problem.stage} {' '.join(problem.slug.split('-')[1:])}",
        "groups": ". ".join(group.name for group in candidate.groups),
    }


def _weigh_terms(fields: Mapping[str, Sequence[str]], means: Mapping[str, float]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for name, terms in fields.items():
        share = 1.0 - LENGTH + LENGTH * len(terms) / means[name]
        for term, times in Counter(terms).items():
            weights[term] = weights.get(term, 0.0) + FIELDS[name] * times / share
    return weights


def _saturate(weights: Sequence[float], rarity: float) -> NDArray[np.float64]:
    found = np.array(weights)
    return rarity * found / (SATURATION + found)


def _mean(lengths: Iterable[int]) -> float:
    listed = list(lengths)
    return max(sum(listed) / len(listed), 1.0) if listed else 1.0
