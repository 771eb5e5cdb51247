"""What one visit to a finding says, done as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from plumbline_web.accounts.models import User
from plumbline_web.triage.domain import assign, comment, decide, set_due, snooze
from plumbline_web.triage.models import Meeting
from plumbline_web.triage.queue import PENDING
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import Decision
from plumbline_web.validations.models import Finding


@transaction.atomic
def save(
    finding: Finding, given: Mapping[str, Any], *, version: int, by: User, meeting: Meeting | None = None
) -> tuple[str, ...]:
    """Do what a form says of a finding: comment, assignment, due date, snooze, decision. Returns sentences of what was.

    `given`: cleaned data of FindingForm. `version`: of the finding when the form was drawn.

    Raises:
        Refused: something of it cannot be; nothing of it was done then.
    """
    done = []
    if given["decision"]:
        done.append(_decide(finding, given, version=version, by=by, meeting=meeting))
    if given["comment"].strip():
        comment(finding, given["comment"], by=by, meeting=meeting)
        done.append("commented")
    if given["assignee"] != (finding.assignee.username if finding.assignee else ""):
        person = User.objects.get(username=given["assignee"]) if given["assignee"] else None
        assign([finding.pk], to=person, by=by)
        done.append(f"assigned to {given['assignee'] or 'nobody'}")
    if given["due"] != finding.due:
        set_due([finding.pk], due=given["due"], by=by)
        done.append(f"due on {given['due']}" if given["due"] else "no longer due")
    if given["snooze"] and not given["decision"]:
        until = given["snooze_until"] if given["snooze"] == "day" else None
        outcome = snooze([finding.pk], until=until, by=by)
        if outcome.skipped:
            raise Refused("illegal_state", outcome.skipped[0].reason)
        done.append("snoozed")
    return tuple(done)


def _decide(finding: Finding, given: Mapping[str, Any], *, version: int, by: User, meeting: Meeting | None) -> str:
    decision = Decision(given["decision"])
    chosen = {finding.pk}
    if given["alike"]:
        chosen |= set(Finding.objects.filter(group=finding.group, state__in=PENDING).values_list("pk", flat=True))
    outcome = decide(
        chosen,
        decision=decision,
        problem=given["problem"],
        reason=given["reason"].strip(),
        versions={finding.pk: version},
        by=by,
        meeting=meeting,
    )
    mine = [skipped.reason for skipped in outcome.skipped if skipped.finding.pk == finding.pk]
    if mine:
        raise Refused("stale", mine[0])
    count = len(outcome.changed)
    assert outcome.action is not None  # this finding was changed
    return f"{outcome.action.text}{f' ({count} findings)' if count > 1 else ''}"
