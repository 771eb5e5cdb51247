"""Why a problem is suggested, in sentences that a person can check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.catalogue.exposure import Exposure, Standing
from checks.catalogue.families import concerns
from checks.matching.described import Candidate, Described
from checks.matching.subjects import catching_checks, subject_of
from checks.matching.vocabulary import pair_terms
from checks.matching.words import read_fields

MOST_WORDS = 5
MOST_FINDINGS = 3


def explain(
    finding: Described,
    candidate: Candidate,
    same: Sequence[str],
    standing: Standing | None,
    terms: Sequence[str],
) -> tuple[str, ...]:
    """The reasons, the weightiest kind first; `same`: decided findings of one signature; `terms`: those
    that the verdict and the problem share, the weightiest first.
    """
    return (
        *_say_same(same),
        *_say_release(standing),
        *_say_place(finding, candidate),
        *_say_subject(finding, candidate),
        *_say_words(candidate, terms),
    )


def _say_same(same: Sequence[str]) -> Iterator[str]:
    if same:
        more = f" and {len(same) - MOST_FINDINGS} more" if len(same) > MOST_FINDINGS else ""
        yield f"the same signature as {', '.join(same[:MOST_FINDINGS])}{more}, decided to be it"


def _say_release(standing: Standing | None) -> Iterator[str]:
    if standing is None:
        return
    if standing.exposure is Exposure.AFFECTED and standing.range is not None:
        yield f"an affected release is installed: {standing.why} ({standing.range.source})"
    if standing.exposure is Exposure.NOT_AFFECTED:
        yield f"no affected release is installed ({standing.why}): it would be back"


def _say_place(finding: Described, candidate: Candidate) -> Iterator[str]:
    problem, software = candidate.problem, finding.software
    if problem.framework in software:
        yield f"it sits in {problem.framework}, which the run uses"
    elif software:
        yield f"it is known of {problem.framework}, not of {' or '.join(software)}: the same kind of fault"
        group = candidate.group_in(software)
        if group is not None:
            shared = (name for name in software if name in group.frameworks)
            yield f"that kind of fault is known of {' and '.join(shared)} too: {group.name}"
    if problem.models and finding.model_class and concerns(problem.models, finding.model_class):
        yield f"it concerns {', '.join(problem.models)}, and the model is {finding.model_class}"


def _say_subject(finding: Described, candidate: Candidate) -> Iterator[str]:
    problem = candidate.problem
    checks = (finding.signature.check, *(other.check for other in finding.also))
    judges = next((check for check in checks if problem.component in subject_of(check).components), None)
    stages = next((check for check in checks if problem.stage in subject_of(check).stages), None)
    if judges is not None:
        yield f"component {problem.component}, which {judges} judges"
    elif stages is not None:
        yield f"stage {problem.stage}, which {stages} judges"
    if finding.pattern and problem.pattern.value == finding.pattern:
        yield f"pattern {finding.pattern}, as the verdict says"
    catching = catching_checks().get(problem.slug, ())
    naming = next((check for check in checks if check in catching), None)
    if naming is not None:
        yield f"{naming} names it among what it catches"


def _say_words(candidate: Candidate, terms: Sequence[str]) -> Iterator[str]:
    """The words as the problem's own text has them."""
    written: dict[str, str] = {}
    for text in read_fields(candidate).values():
        for term, words in pair_terms(text):
            written.setdefault(term, words)
    shown = [written[term] for term in terms[:MOST_WORDS] if term in written]
    if shown:
        yield f"shared words: {', '.join(dict.fromkeys(shown))}"
