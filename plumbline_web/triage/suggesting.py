"""Problems that a finding may be, each with its reasons; nothing here decides."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from django.contrib.postgres.search import SearchQuery, SearchRank
from django.db.models import Count, F, Max
from packaging.utils import canonicalize_name

from checks.catalogue import problem as known
from checks.matching.described import Decided, Described, describe_finding, list_candidates, list_used
from checks.matching.match import Basis, Matcher
from plumbline_web.problems.documents import to_problem
from plumbline_web.problems.models import LANGUAGE, Problem, Recurrence
from plumbline_web.triage.models import Occurrence
from plumbline_web.validations.enums import Status
from plumbline_web.validations.models import Finding

MOST_MATCHED = 2_000
"""Problems that are matched with all at once, prepared when one of them changes; preparing takes half a millisecond
each. Of a larger catalogue only those that share words with the finding are."""
SHORTLIST = 500
WORD = re.compile(r"[a-z]{4,}")
MOST_WORDS = 40

MOST_DECIDED = 200
"""Decisions on the same group that are counted."""


@dataclass(frozen=True)
class Suggested:
    """A problem of this installation, and why it is suggested."""

    problem: Problem
    basis: Basis
    reasons: tuple[str, ...]


def suggest_problems(finding: Finding) -> tuple[Suggested, ...]:
    """The likeliest problems, the first one first; those turned down for this finding or one alike are left out.

    `finding`: with its result's document, and the validation's framework, environment and model.
    """
    said = list(
        Occurrence.objects.filter(finding__group=finding.group, stands=True)
        .select_related("problem", "finding")
        .only("holds", "problem__slug", "finding__group")
        .order_by("-pk")[:MOST_DECIDED]
    )
    described = describe(finding)
    key = described.signature.key
    found = _choose_matcher(described, decided={each.problem.slug for each in said if each.holds}).suggest(
        described,
        decided=[Decided(key, each.problem.slug, each.finding.number) for each in said if each.holds],
        rejected={each.problem.slug for each in said if not each.holds},
    )
    rows = Problem.objects.defer("search").in_bulk([each.slug for each in found], field_name="slug")
    return tuple(Suggested(rows[each.slug], each.basis, each.reasons) for each in found if each.slug in rows)


def describe(finding: Finding) -> Described:
    """What the matcher reads of a finding."""
    validation = finding.validation
    others = (
        validation.results.filter(status=Status.FAIL, superseded_at__isnull=True)
        .exclude(pk=finding.result_id)
        .order_by("position")
        .values("check_name", "sentence")
    )
    family = validation.model.family
    return describe_finding(
        finding.result.document,
        framework=validation.framework.name,
        packages={canonicalize_name(name): version for name, version in validation.environment.packages.items()},
        model_class=f"{family}ForCausalLM" if family else "",
        others=[{"check": each["check_name"], "sentence": each["sentence"]} for each in others],
        used=list_used(validation.spec),
    )


def _choose_matcher(described: Described, *, decided: Collection[str]) -> Matcher:
    edition = _read_edition()
    if edition[0] <= MOST_MATCHED:
        return _read_matcher(*edition)
    return _prepare(_shortlist(described, decided=decided))


def _shortlist(described: Described, *, decided: Collection[str]) -> list[Problem]:
    """The problems that share most with a finding's words, of its pattern where it has one; and what was decided."""
    words = list(dict.fromkeys(WORD.findall(f"{described.sentence} {described.first_wrong}".lower())))[:MOST_WORDS]
    query = SearchQuery(" | ".join(words), config=LANGUAGE, search_type="raw")
    rows = Problem.objects.filter(merged_into__isnull=True).defer("search", "shipped")
    alike = rows.filter(pattern=described.pattern) if described.pattern else rows
    if words:
        alike = alike.filter(search=query).annotate(rank=SearchRank(F("search"), query)).order_by("-rank", "pk")
    found = list(alike[:SHORTLIST])
    return found + list(rows.filter(slug__in=decided).exclude(pk__in=[row.pk for row in found]))


def _read_edition() -> tuple[int, datetime | None, int]:
    """What changes whenever a problem does: the matcher is built anew then."""
    problems = Problem.objects.aggregate(count=Count("pk"), latest=Max("updated_at"))
    return problems["count"], problems["latest"], Recurrence.problems.through.objects.count()


@lru_cache(maxsize=1)
def _read_matcher(_count: int, _latest: datetime | None, _memberships: int) -> Matcher:
    """The matcher over all problems that are not merged into another, kept until one of them changes."""
    return _prepare(list(Problem.objects.filter(merged_into__isnull=True).defer("search", "shipped").order_by("slug")))


def _prepare(rows: Sequence[Problem]) -> Matcher:
    return Matcher(list_candidates([to_problem(row) for row in rows], _read_groups(rows)))


def _read_groups(rows: Sequence[Problem]) -> list[known.Recurrence]:
    """The groups that the problems belong to, with these problems alone."""
    by_key = {row.pk: row for row in rows}
    members: dict[str, list[Problem]] = {}
    for name, key in Recurrence.problems.through.objects.values_list("recurrence__name", "problem_id"):
        if key in by_key:
            members.setdefault(name, []).append(by_key[key])
    return [
        known.Recurrence(name, tuple(row.slug for row in group), tuple(sorted({row.framework for row in group})))
        for name, group in members.items()
    ]
