"""Which frameworks a fault was made in, and which are not yet known to be free of it."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline_web.problems.models import Problem, Recurrence


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


def read_recurring() -> tuple[Recurring, ...]:
    """All groups, the largest first, in three queries."""
    frameworks = sorted(Problem.objects.order_by().values_list("framework", flat=True).distinct())
    groups = []
    for group in Recurrence.objects.prefetch_related("problems"):
        by_framework: dict[str, list[Problem]] = {}
        for problem in group.problems.all():
            by_framework.setdefault(problem.framework, []).append(problem)
        members = [problem for problems in by_framework.values() for problem in problems]
        groups.append(
            Recurring(
                group=group,
                count=len(members),
                open=sum(problem.status != "fixed" for problem in members),
                having=tuple(Standing(name, tuple(by_framework[name])) for name in sorted(by_framework)),
                unknown=tuple(name for name in frameworks if name not in by_framework),
            )
        )
    return tuple(sorted(groups, key=lambda each: (-each.count, each.group.name)))
