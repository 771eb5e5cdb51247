"""Everything that the page of one finding shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plumbline_web.accounts.models import User
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.triage.history import History, read_history
from plumbline_web.triage.models import Comment, Occurrence, Waiver
from plumbline_web.triage.suggesting import Suggested, suggest_problems
from plumbline_web.triage.waivers import find_waiver
from plumbline_web.validations.enums import FindingState
from plumbline_web.validations.models import Finding
from plumbline_web.validations.pictures import Picture, read_pictures

MOST_ALIKE = 6
MOST_EVENTS = 100
MOST_MEASURED = 6

UNDECIDED = (FindingState.OPEN, FindingState.WAITING)


@dataclass(frozen=True)
class Detail:
    """`alike`: the newest others of its group; `alike_count`: of all, `alike_open`: keys of those undecided."""

    finding: Finding
    history: History
    suggestions: tuple[Suggested, ...]
    alike: tuple[Finding, ...]
    alike_count: int
    alike_open: int
    occurrences: tuple[Occurrence, ...]
    comments: tuple[Comment, ...]
    events: tuple[Event, ...]
    waiver: Waiver | None
    pictures: tuple[Picture, ...]
    measured: tuple[Mapping[str, Any], ...]
    """what does not hold, the worst first"""
    is_pinned: bool


def read_detail(finding: Finding, *, person: User) -> Detail:
    """`finding`: with its result's document and the names of what was validated."""
    document: Mapping[str, Any] = finding.result.document
    alike = Finding.objects.filter(group=finding.group).exclude(pk=finding.pk)
    wrong = [each for each in document.get("measurements", ()) if not each["holds"]]
    return Detail(
        finding=finding,
        history=read_history(finding),
        suggestions=suggest_problems(finding),
        alike=tuple(alike.with_names().order_by("-created_at", "-pk")[:MOST_ALIKE]),
        alike_count=alike.count(),
        alike_open=alike.filter(state__in=UNDECIDED).count(),
        occurrences=tuple(
            finding.occurrences.filter(stands=True).select_related("problem", "action__actor").order_by("-holds", "pk")
        ),
        comments=tuple(finding.comments.select_related("author")),
        events=tuple(
            Event.objects.filter(subject=Subject.FINDING, subject_id=finding.pk)
            .select_related("actor")
            .order_by("-at", "-pk")[:MOST_EVENTS]
        ),
        waiver=find_waiver(finding),
        pictures=read_pictures(document.get("evidence") or {}),
        measured=tuple(wrong[:MOST_MEASURED]),
        is_pinned=finding.pins.filter(owner=person).exists(),
    )
