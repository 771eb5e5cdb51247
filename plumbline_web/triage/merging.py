"""Two problems that turned out to be one."""

from __future__ import annotations

from django.db import transaction

from plumbline_web.accounts.models import User
from plumbline_web.problems.models import Problem
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.triage.changes import begin, check_may_triage
from plumbline_web.triage.enums import ActionKind
from plumbline_web.triage.models import Action, ProblemChange
from plumbline_web.triage.occurrences import follow_merges
from plumbline_web.validations.domain import Refused


@transaction.atomic
def merge(problem: Problem, *, into: Problem, by: User) -> Action:
    """Say that `problem` is `into`; its occurrences stay its own and are shown there, so that it can be undone.

    Raises:
        Refused: not a triager, a merge with itself by whatever way, or one that is merged already.
    """
    check_may_triage(by)
    # both rows, in one order: two people who merge the two into each other do not wait for one another
    rows = Problem.objects.select_for_update(of=("self",)).defer("search").filter(pk__in=[problem.pk, into.pk])
    locked = {row.pk: row for row in rows.order_by("pk")}
    merged = locked[problem.pk]
    if merged.merged_into_id is not None:
        raise Refused("stale", f"{merged.number} is merged into P-{merged.merged_into_id} already; undo that first")
    root = follow_merges(locked[into.pk])
    if root.pk == merged.pk:
        raise Refused("illegal_state", f"{merged.number} cannot be merged with itself; name another problem")
    action = begin(ActionKind.MERGE, f"merged {merged.number} into {root.number}", by=by)
    ProblemChange.objects.create(action=action, problem=merged, before=None, after=root)
    merged.merged_into = root
    merged.version += 1
    merged.save(update_fields=["merged_into", "version", "updated_at"])
    for each in (merged, root):
        record(Subject.PROBLEM, each, action.text, actor=by, action=action.pk)
    return action
