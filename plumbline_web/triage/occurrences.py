"""Which findings are which problems: said, taken back, and followed through merged problems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import Q, QuerySet

from plumbline_web.problems.models import Problem
from plumbline_web.triage.models import Action, Occurrence, OccurrenceChange
from plumbline_web.validations.models import Finding


def follow_merges(problem: Problem) -> Problem:
    """The problem that one turned out to be, through every merge; read anew, whatever the instance says."""
    key = problem.pk
    while (into := Problem.objects.values_list("merged_into", flat=True).get(pk=key)) is not None:
        key = into
    return problem if key == problem.pk else Problem.objects.defer("search").get(pk=key)


def list_merged(problem: Problem) -> list[int]:
    """Keys of a problem, which is the first, and of all that were merged into it, by whatever way."""
    keys = [problem.pk]
    fresh = keys
    while fresh:
        fresh = list(Problem.objects.filter(merged_into__in=fresh).values_list("pk", flat=True))
        keys = keys + fresh
    return keys


def list_occurrences(problems: Iterable[int]) -> QuerySet[Occurrence]:
    """The findings that are one of the problems, the newest first; of all that `list_merged` names, for one problem."""
    return (
        Occurrence.objects.filter(problem__in=list(problems), holds=True, stands=True)
        .select_related("finding__validation__framework", "finding__validation__environment", "problem")
        .select_related("finding__validation__model", "action__actor")
        .defer("finding__validation__spec", "finding__validation__plan")
        .order_by("-finding")
    )


def say(action: Action, findings: Sequence[Finding], *, problem: Problem, holds: bool) -> None:
    """Write that findings are a problem, or are known not to be."""
    made = Occurrence.objects.bulk_create(
        (Occurrence(finding=finding, problem=problem, holds=holds, action=action) for finding in findings),
        batch_size=1_000,
    )
    log(action, made, stands=True)


def take_back(action: Action, findings: Sequence[Finding], *, problem: Problem | None) -> None:
    """Take back what is said of findings: that they are any problem, and that they are not `problem`."""
    said = Q(holds=True) if problem is None else Q(holds=True) | Q(problem=problem)
    standing = list(Occurrence.objects.select_for_update().filter(said, finding__in=findings, stands=True))
    Occurrence.objects.filter(pk__in=[each.pk for each in standing]).update(stands=False)
    log(action, standing, stands=False)


def log(action: Action, occurrences: Iterable[Occurrence], *, stands: bool) -> None:
    """Record what an action did to occurrences."""
    OccurrenceChange.objects.bulk_create(
        (OccurrenceChange(action=action, occurrence=each, stands=stands) for each in occurrences), batch_size=1_000
    )
