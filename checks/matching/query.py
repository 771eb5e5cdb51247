"""The terms of a finding, each with a weight: what its verdict says, and what its check is about."""

from __future__ import annotations

from collections import Counter

from checks.matching.described import Described
from checks.matching.subjects import describe_check
from checks.matching.vocabulary import list_terms
from checks.matching.weights import DEFAULT, Weights
from checks.matching.wording import generalise_sentence

MOST_TIMES = 2
"""How often a term of one source counts."""


def weigh_terms(finding: Described, weights: Weights = DEFAULT) -> dict[str, float]:
    """Term → weight, the sum over the sources that hold it."""
    signature = finding.signature
    statement = f"{signature.statement}. {signature.module}. {signature.scale} {signature.positions} {signature.frame}"
    sources = (
        (weights.statement, statement),
        (weights.sentence, finding.sentence),
        (weights.check, describe_check(signature.check)),
        (weights.also, ". ".join(generalise_sentence(other.sentence) for other in finding.also)),
        (weights.used, " ".join(finding.used)),
    )
    found: dict[str, float] = {}
    for weight, text in sources:
        for term, times in Counter(list_terms(text)).items():
            found[term] = found.get(term, 0.0) + weight * min(times, MOST_TIMES)
    return found
