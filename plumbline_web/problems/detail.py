"""What the page of one problem tells beside its own columns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.contrib.postgres.search import SearchQuery, SearchRank
from django.db.models import F, Prefetch, Q

from checks.matching.subjects import catching_checks
from plumbline_web.problems.documents import changed_here
from plumbline_web.problems.models import LANGUAGE, Problem, Recurrence
from plumbline_web.problems.recurring import SHOWN
from plumbline_web.timeline.models import Event, Subject
from workers.reproductions.outcome import Reproduction, read_shipped

MOST_RELATED = 6
MOST_EVENTS = 200

WORD = re.compile(r"[a-z]{4,}")


@dataclass(frozen=True)
class Group:
    """A group of recurrences that the problem belongs to, with its other problems."""

    name: str
    pk: int
    siblings: tuple[Problem, ...]


@dataclass(frozen=True)
class Detail:
    """`catching`: checks of this version that say they catch it. `changed`: fields that a person changed."""

    problem: Problem
    groups: tuple[Group, ...]
    related: tuple[Problem, ...]
    catching: tuple[str, ...]
    events: tuple[Event, ...]
    changed: tuple[str, ...]
    reproduction: Reproduction | None
    """how this version was seen to catch it, where it was tried"""


def read_detail(problem: Problem) -> Detail:
    """Everything that the page shows, in four queries."""
    groups = _read_groups(problem)
    return Detail(
        problem=problem,
        groups=groups,
        related=_find_related(problem, {sibling.pk for group in groups for sibling in group.siblings}),
        catching=catching_checks().get(problem.slug, ()),
        events=tuple(
            Event.objects.filter(subject=Subject.PROBLEM, subject_id=problem.pk)
            .select_related("actor")
            .order_by("-at", "-pk")[:MOST_EVENTS]
        ),
        changed=changed_here(problem),
        reproduction=read_shipped().get(problem.slug),
    )


def _read_groups(problem: Problem) -> tuple[Group, ...]:
    recurrences = Recurrence.objects.filter(problems=problem).prefetch_related(
        Prefetch("problems", queryset=Problem.objects.only(*SHOWN))
    )
    return tuple(
        Group(group.name, group.pk, tuple(other for other in group.problems.all() if other.pk != problem.pk))
        for group in recurrences
    )


def _find_related(problem: Problem, known: set[int]) -> tuple[Problem, ...]:
    """Problems of the same pattern that share words of the title, the nearest first; siblings are shown already."""
    words = dict.fromkeys(WORD.findall(problem.title.lower()))
    if not words:
        return ()
    query = SearchQuery(" | ".join(words), config=LANGUAGE, search_type="raw")
    rows = (
        Problem.objects.filter(Q(search=query), pattern=problem.pattern)
        .exclude(pk__in={problem.pk, *known})
        .annotate(rank=SearchRank(F("search"), query))
        .only("slug", "title", "framework", "silent", "status")
        .order_by("-rank", "pk")
    )
    return tuple(rows[:MOST_RELATED])
