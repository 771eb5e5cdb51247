"""Known failures that are accepted until a day: they leave the queue, and come back by themselves."""

from __future__ import annotations

from datetime import date, timedelta

from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.models import User
from plumbline_web.problems.models import Problem
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.triage.changes import check_may_triage
from plumbline_web.triage.models import Waiver
from plumbline_web.triage.occurrences import follow_merges
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

LONGEST = timedelta(days=366)
"""A failure that is accepted for longer is one that nobody means to mend: decide that it is not a problem."""


@transaction.atomic
def waive(finding: Finding, *, problem: Problem, until: date, reason: str, by: User) -> Waiver:
    """Accept a failure, and those alike on the same framework, until a day.

    Raises:
        Refused: not a triager, a day that is past or too far off, no reason, or waived already.
    """
    check_may_triage(by)
    today = timezone.localdate()
    if not today < until <= today + LONGEST:
        raise Refused("illegal_state", f"{until} is no day within the next year; a waiver ends on one")
    if not reason.strip():
        raise Refused("illegal_state", "a waiver says why the failure is accepted; give the reason")
    Finding.objects.select_for_update().get(pk=finding.pk)  # waived twice at once is waived once
    standing = find_waiver(finding)
    if standing is not None:
        who = standing.made_by.username
        raise Refused("stale", f"{who} waived it until {standing.until} already; end that waiver first")
    waiver = Waiver.objects.create(
        group=finding.group,
        framework=finding.validation.framework,
        problem=follow_merges(problem),
        until=until,
        reason=reason.strip(),
        made_by=by,
    )
    record(Subject.FINDING, finding, f"waived until {until} as {waiver.problem.number}", actor=by, waiver=waiver.pk)
    return waiver


@transaction.atomic
def end_waiver(waiver: Waiver, *, by: User) -> None:
    """Take a waiver back; ending it twice is ending it once."""
    check_may_triage(by)
    now = timezone.now()
    if Waiver.objects.filter(pk=waiver.pk, ended_at__isnull=True).update(ended_by=by, ended_at=now):
        record(Subject.PROBLEM, waiver.problem, f"ended the waiver until {waiver.until}", actor=by, waiver=waiver.pk)


def find_waiver(finding: Finding) -> Waiver | None:
    """The waiver that covers a finding today."""
    return (
        Waiver.objects.filter(
            group=finding.group,
            framework=finding.validation.framework_id,
            until__gt=timezone.localdate(),
            ended_at__isnull=True,
        )
        .select_related("problem", "made_by")
        .order_by("-until")
        .first()
    )
