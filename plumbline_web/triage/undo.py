"""Undoing a deed, and undoing that: what changed since is left alone, and said."""

from __future__ import annotations

from collections import defaultdict

from django.db import transaction

from plumbline_web.accounts.models import User
from plumbline_web.problems.models import Problem
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.triage.changes import (
    Outcome,
    Skipped,
    Values,
    begin,
    check_may_triage,
    describe_last_change,
    from_json,
    lock,
    tell,
    to_json,
    write,
)
from plumbline_web.triage.enums import ActionKind
from plumbline_web.triage.models import Action, Occurrence, OccurrenceChange, ProblemChange
from plumbline_web.triage.occurrences import follow_merges, log
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

RECENT = 50
"""Deeds of a person among which the last one that can be undone is looked for."""


def find_last(by: User) -> Action | None:
    """A person's last deed that is in force; an undoing is no deed of its own."""
    recent = Action.objects.filter(actor=by, undoes__isnull=True).order_by("-pk")[:RECENT]
    return next((action for action in recent if find_undoing(action) is None), None)


def find_undoing(action: Action) -> Action | None:
    """The undoing of a deed that is in force: not one that was undone itself."""
    undoings = Action.objects.filter(undoes=action).select_related("actor").order_by("-pk")
    return next((undoing for undoing in undoings if find_undoing(undoing) is None), None)


@transaction.atomic
def undo(action: Action, *, by: User) -> Outcome:
    """Bring back what was there before a deed, where nobody changed it since.

    Raises:
        Refused: not a triager, it was undone already, or nothing of it can be.
    """
    check_may_triage(by)
    Action.objects.select_for_update().get(pk=action.pk)
    earlier = find_undoing(action)
    if earlier is not None:
        raise Refused("stale", f"{earlier.actor.username} undid this already ({earlier.at:%H:%M:%S UTC})")
    changes = {change.finding_id: change for change in action.changes.all()}
    words: dict[int, list[OccurrenceChange]] = defaultdict(list)
    for word in action.occurrence_changes.select_related("occurrence").order_by("pk"):
        words[word.occurrence.finding_id].append(word)
    chosen: list[tuple[Finding, Values]] = []
    skipped: list[Skipped] = []
    for finding in lock({*changes, *words}):
        change = changes.get(finding.pk)
        after = change.after if change is not None else {}
        if any(to_json(getattr(finding, name)) != value for name, value in after.items()) or any(
            word.occurrence.stands != word.stands for word in words[finding.pk]
        ):
            skipped.append(Skipped(finding, describe_last_change(finding)))
        else:
            before = change.before if change is not None else {}
            chosen.append((finding, {name: from_json(name, value) for name, value in before.items()}))
    undoing = begin(ActionKind.UNDO, f"undid: {action.text}", by=by, undoes=action)
    parted = _part(action, undoing)
    if not chosen and not parted:
        raise Refused("stale", "nothing can be undone: " + "; ".join(each.reason for each in skipped[:3]))
    write(undoing, [(finding, values) for finding, values in chosen if values])
    tell(undoing, [finding for finding, values in chosen if not values])
    _turn(undoing, [word for finding, _ in chosen for word in words[finding.pk]])
    return Outcome(undoing, tuple(finding for finding, _ in chosen), tuple(skipped))


def _turn(undoing: Action, words: list[OccurrenceChange]) -> None:
    """Each occurrence stands again, or no longer. Those that fall go first: one alone may stand."""
    for stands in (False, True):
        turned = [word.occurrence for word in words if word.stands != stands]
        Occurrence.objects.filter(pk__in=[each.pk for each in turned]).update(stands=stands)
        log(undoing, turned, stands=stands)


def _would_circle(problem: Problem, into: Problem | None) -> bool:
    """Whether a merge that comes back would lead to where it began: the other was merged meanwhile."""
    return into is not None and follow_merges(into).pk == problem.pk


def _part(action: Action, undoing: Action) -> list[Problem]:
    """Undo the merges of a deed, where the problems are still merged so."""
    parted = []
    for change in action.problem_changes.select_related("problem", "before").order_by("pk"):
        problem = Problem.objects.select_for_update(of=("self",)).defer("search").get(pk=change.problem_id)
        if problem.merged_into_id != change.after_id or _would_circle(problem, change.before):
            continue
        problem.merged_into_id = change.before_id
        problem.version += 1
        problem.save(update_fields=["merged_into", "version", "updated_at"])
        ProblemChange.objects.create(
            action=undoing, problem=problem, before_id=change.after_id, after_id=change.before_id
        )
        record(Subject.PROBLEM, problem, undoing.text, actor=undoing.actor)
        parted.append(problem)
    return parted
