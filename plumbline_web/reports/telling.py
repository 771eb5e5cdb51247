"""What people are told of a report: that something changed upstream."""

from __future__ import annotations

from django.urls import reverse

from plumbline_web.accounts.models import User
from plumbline_web.accounts.people import list_triagers
from plumbline_web.notifications.domain import notify
from plumbline_web.notifications.enums import Kind
from plumbline_web.reports.models import Report
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject


def tell_upstream(report: Report, text: str, *, by: User | None) -> None:
    """Note a change upstream with the problem, and tell the report's owner and the triagers of it."""
    if report.problem is not None:
        record(Subject.PROBLEM, report.problem, f"{report.number}: {text}", actor=by)
    about = report.problem or report
    notify(
        Kind.UPSTREAM,
        about=about,
        text=f"{about.number} {text}",
        address=reverse("report-detail", args=[report.pk]),
        to=(report.owner, *list_triagers()),
        by=by,
    )
