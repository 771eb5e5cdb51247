"""What a triage meeting talks about, in order: new silent failures, regressions, nobody's, what is open for long."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.models import User
from plumbline_web.triage.changes import check_may_triage
from plumbline_web.triage.enums import AgendaReason
from plumbline_web.triage.models import AgendaItem, Meeting
from plumbline_web.triage.queue import list_pending
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

MOST_ITEMS = 30
"""Of one meeting; an hour is two minutes each."""

STALE = timedelta(days=7)
"""A finding that is open for longer than from one weekly meeting to the next."""


def plan_agenda() -> list[tuple[Finding, AgendaReason]]:
    """One finding of each group, for its first reason; the newest of a group stands for all."""
    now = timezone.now()
    pending = list_pending(Finding.objects.all())
    reasons = (
        (AgendaReason.SILENT, pending.filter(silent=True, regressed=False, created_at__gt=now - STALE)),
        (AgendaReason.REGRESSED, pending.filter(regressed=True)),
        (AgendaReason.UNASSIGNED, pending.filter(assignee__isnull=True)),
        (AgendaReason.STALE, pending.filter(created_at__lte=now - STALE)),
    )
    seen: set[str] = set()
    items: list[tuple[Finding, AgendaReason]] = []
    for reason, rows in reasons:
        newest = rows.select_related("result").only("group", "check_name", "result__sentence")
        for finding in newest.order_by("-created_at", "-pk")[: MOST_ITEMS * 20]:
            if finding.group not in seen and len(items) < MOST_ITEMS:
                seen.add(finding.group)
                items.append((finding, reason))
    return items


@transaction.atomic
def start_meeting(title: str, *, by: User) -> Meeting:
    """Begin a meeting with the agenda as it is now.

    Raises:
        Refused: not a triager, or there is nothing to talk about.
    """
    check_may_triage(by)
    items = plan_agenda()
    if not items:
        raise Refused("illegal_state", "no finding needs a person now; there is nothing to meet about")
    name = title.strip()[:200] or f"Triage of {timezone.localdate():%d %B %Y}"
    meeting = Meeting.objects.create(title=name, started_by=by)
    AgendaItem.objects.bulk_create(
        AgendaItem(meeting=meeting, finding=finding, position=position, reason=reason)
        for position, (finding, reason) in enumerate(items, start=1)
    )
    return meeting


def end_meeting(meeting: Meeting, *, by: User) -> None:
    """Nothing more is recorded in it; ending it twice is ending it once."""
    check_may_triage(by)
    Meeting.objects.filter(pk=meeting.pk, ended_at__isnull=True).update(ended_at=timezone.now())


def find_open_item(meeting: Meeting) -> AgendaItem | None:
    """The first item that was neither decided nor put off in the meeting."""
    handled = set(meeting.actions.filter(changes__isnull=False).values_list("changes__finding", flat=True))
    return next((item for item in meeting.items.all() if item.finding_id not in handled), None)
