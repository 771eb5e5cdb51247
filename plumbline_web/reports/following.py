"""What becomes of sent reports: their state upstream, and whether a release mends the fault."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from plumbline_web.reports.enums import SENT_STATES, UpstreamState
from plumbline_web.reports.environments import Choice, is_newer, list_choices
from plumbline_web.reports.models import Report
from plumbline_web.reports.permissions import digest_of, was_approved
from plumbline_web.reports.running import start_run
from plumbline_web.reports.sending import set_upstream
from plumbline_web.reports.subjects import framework_of, package_of
from plumbline_web.reports.upstream import Unreachable, fetch_state, parse_issue
from plumbline_web.validations.domain import Refused

log = logging.getLogger(__name__)

EVERY = timedelta(hours=6)
"""between two looks at one issue: a token may ask 5,000 times an hour"""
MOST_AT_ONCE = 200

MENDED = (UpstreamState.CLOSED, UpstreamState.MERGED)


def look_upstream() -> int:
    """Ask GitHub about the reports that were sent there and not looked at lately; how many were asked."""
    token = settings.GITHUB_TOKEN
    if not token:
        return 0
    due = Report.objects.filter(state__in=SENT_STATES, upstream_url__startswith="https://github.com/").exclude(
        upstream_at__gt=timezone.now() - EVERY
    )
    asked = 0
    for report in due.order_by("upstream_at")[:MOST_AT_ONCE]:
        asked += look_at(report, token=token)
    return asked


def look_at(report: Report, *, token: str) -> bool:
    """Ask about one report and note the answer, or why there was none; False for an address that is no issue."""
    issue = parse_issue(report.upstream_url)
    if issue is None:
        return False
    state, error = UpstreamState(report.upstream_state), ""
    try:
        state = fetch_state(issue, token=token, api=settings.GITHUB_API)
    except Unreachable as unreachable:
        error = str(unreachable)
    set_upstream(report, url=report.upstream_url, state=state, by=None, error=error)
    return True


def run_in_releases() -> int:
    """Run the scripts of reports whose fix is claimed in releases that came since; how many were asked for.

    One a report and look: the next one comes when it has ended.
    """
    asked = 0
    for report in Report.objects.with_subjects().filter(state__in=SENT_STATES):
        if not claims_fix(report) or not (report.is_generated or was_approved(report)):
            continue
        choice = next(find_releases(report), None)
        if choice is None:
            continue
        try:
            start_run(report, environment=choice.name, by=None)
            asked += 1
        except Refused as refused:
            log.info("%s: %s", report.number, refused)
    return asked


def claims_fix(report: Report) -> bool:
    """Whether upstream, or the catalogue, says that the fault is mended."""
    problem = report.problem
    return report.upstream_state in MENDED or (problem is not None and bool(problem.fixed_in))


def find_releases(report: Report) -> Iterator[Choice]:
    """Environments with a later release than the one that showed the fault, in which this script was not run yet."""
    package = package_of(report)
    shown = report.verified_by.packages.get(package, "") if report.verified_by is not None else ""
    tried = set(report.runs.filter(digest=digest_of(report.script)).values_list("environment", flat=True))
    for choice in list_choices(framework_of(report)):
        if choice.name not in tried and shown and is_newer(choice.packages.get(package, ""), shown):
            yield choice
