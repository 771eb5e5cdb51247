"""What becomes of a report: whether it may leave the house, where it was sent, and how it stands there."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.db import transaction
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.reports.enums import SENT_STATES, ReportState, Tracker, UpstreamState
from plumbline_web.reports.models import Report
from plumbline_web.reports.permissions import check_role, digest_of
from plumbline_web.reports.states import change, move
from plumbline_web.reports.telling import tell_upstream
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.domain import Refused


@transaction.atomic
def mark_sent(report: Report, *, url: str, by: User) -> Report:
    """Say where a report was sent to.

    Raises:
        Refused: its script did not show the fault, or it was sent already.
    """
    check_role(by, Role.TRIAGER, "sending a report")
    report = Report.objects.select_for_update().get(pk=report.pk)
    if report.state in SENT_STATES:
        raise Refused("illegal_state", f"{report.number} was sent already; change its address instead")
    check_ready(report)
    _check_url(url, report)
    state = UpstreamState.OPEN if url else UpstreamState.UNKNOWN
    at = timezone.now() if url else None
    text = f"sent: {url}" if url else "sent"
    move(report, ReportState.SENT, text, actor=by, upstream_url=url, upstream_state=state, upstream_at=at)
    if report.problem is not None:
        record(Subject.PROBLEM, report.problem, f"{report.number} {text}", actor=by)
    return report


@transaction.atomic
def set_upstream(report: Report, *, url: str, state: UpstreamState, by: User | None, error: str = "") -> Report:
    """Note a report's address upstream and how it stands there, by a person or by the schedule."""
    if by is not None:
        check_role(by, Role.TRIAGER, "changing a report")
        _check_url(url, report)
    report = Report.objects.select_for_update().get(pk=report.pk)
    if report.state not in SENT_STATES:
        raise Refused("illegal_state", f"{report.number} was not sent yet")
    is_new = (url, state) != (report.upstream_url, report.upstream_state)
    values = {"upstream_url": url, "upstream_state": state, "upstream_at": timezone.now(), "upstream_error": error}
    if is_new:
        text = f"upstream is {state.label}: {url}"
        change(report, text, actor=by, before={"url": report.upstream_url, "state": report.upstream_state}, **values)
        tell_upstream(report, text, by=by)
    else:
        for name, value in values.items():
            setattr(report, name, value)
        report.save(update_fields=list(values))
    return report


def find_obstacle(report: Report) -> str:
    """Why a report cannot leave the house yet, in a sentence; empty when it can."""
    if not report.script.strip():
        return f"{report.number} has no reproducer: a report is sent with a script that shows the fault"
    if report.state == ReportState.DRAFT:
        last = report.runs.order_by("-pk").first()
        if last is None or last.digest != digest_of(report.script):
            return f"the script of {report.number} was not run as it stands"
        if last.is_open:
            return f"the script of {report.number} is being run"
        return f"the script of {report.number} did not show the fault: {last.verdict}"
    return ""


def check_ready(report: Report) -> None:
    """Raises Refused where a report cannot leave the house yet."""
    obstacle = find_obstacle(report)
    if obstacle:
        raise Refused("illegal_state", obstacle)


def _check_url(url: str, report: Report) -> None:
    parts = urlsplit(url)
    if url and (parts.scheme != "https" or not parts.hostname):
        raise Refused("illegal_state", f"address: {url[:80]!r} is none of an issue; it begins with https://")
    if not url and report.tracker != Tracker.TEXT:
        raise Refused("illegal_state", "address: say where the issue is, https://…")
