"""Which frameworks a fault was made in, and which are not yet known to be free of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Prefetch, QuerySet, prefetch_related_objects

from plumbline_web.problems.facets import read_facets
from plumbline_web.problems.models import Problem, Recurrence

SHOWN = ("id", "title", "framework", "status", "silent")
"""Columns that a group shows of each of its problems."""


@dataclass(frozen=True)
class Standing:
    """A framework and the problems of one group that it has, or had; none means that nobody has looked."""

    framework: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Recurring:
    """A group: `having` had the fault, `unknown` are the catalogue's other frameworks that train."""

    group: Recurrence
    count: int
    open: int
    """problems that upstream has not mended"""
    having: tuple[Standing, ...]
    unknown: tuple[str, ...]


def list_groups() -> QuerySet[Recurrence]:
    """All groups, the largest first."""
    return Recurrence.objects.annotate(size=Count("problems")).order_by("-size", "name")


def read_recurring(groups: Sequence[Recurrence]) -> tuple[Recurring, ...]:
    """What to say of some groups; one query for all of their problems, and the catalogue's frameworks."""
    prefetch_related_objects(groups, Prefetch("problems", queryset=Problem.objects.only(*SHOWN)))
    frameworks = [name for name, _ in read_facets().of("framework")]
    return tuple(_describe(group, frameworks) for group in groups)


def _describe(group: Recurrence, frameworks: Sequence[str]) -> Recurring:
    by_framework: dict[str, list[Problem]] = {}
    for problem in group.problems.all():
        by_framework.setdefault(problem.framework, []).append(problem)
    members = [problem for problems in by_framework.values() for problem in problems]
    return Recurring(
        group=group,
        count=len(members),
        open=sum(problem.status != "fixed" for problem in members),
        having=tuple(Standing(name, tuple(by_framework[name])) for name in sorted(by_framework)),
        unknown=tuple(name for name in frameworks if name not in by_framework),
    )
