"""The moves of a report's state, each with its event; every other is refused."""

from __future__ import annotations

from typing import Any

from plumbline_web.accounts.models import User
from plumbline_web.reports.enums import ReportState
from plumbline_web.reports.models import Report
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject

MOVES: dict[ReportState, frozenset[ReportState]] = {
    ReportState.DRAFT: frozenset({ReportState.VERIFIED}),
    # back to a draft: its script was changed, or no longer shows the fault
    ReportState.VERIFIED: frozenset({ReportState.DRAFT, ReportState.SENT}),
    ReportState.SENT: frozenset({ReportState.CLOSED}),
    ReportState.CLOSED: frozenset({ReportState.SENT}),  # a later environment has the fault again
}


class IllegalMove(RuntimeError):
    """A state change that the state machine does not have."""


def move(report: Report, state: ReportState, text: str, *, actor: User | None = None, **changes: Any) -> None:
    """Change the state of a locked report, with other fields, and write the event."""
    if state not in MOVES[ReportState(report.state)]:
        raise IllegalMove(f"{report.number} cannot go from {report.state} to {state}")
    change(report, text, actor=actor, state=state, **changes)


def change(
    report: Report, text: str, *, actor: User | None = None, before: dict[str, Any] | None = None, **changes: Any
) -> None:
    """Change fields of a locked report and write the event; `before`: what it replaced, kept with the event."""
    changes["version"] = report.version + 1
    for name, value in changes.items():
        setattr(report, name, value)
    report.save(update_fields=[*changes, "updated_at"])
    record(Subject.REPORT, report, text, actor=actor, **({"before": before} if before else {}))
