"""What people do to a report: begin it, edit it. `running.py` has its script run, `sending.py` what becomes of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from django.db import transaction

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.problems.models import Problem
from plumbline_web.reports.content import write_body
from plumbline_web.reports.enums import SENT_STATES, Kind, ReportState, Tracker
from plumbline_web.reports.models import Report
from plumbline_web.reports.permissions import check_role
from plumbline_web.reports.reproducers.generate import write_skeleton
from plumbline_web.reports.states import change, move
from plumbline_web.reports.subjects import framework_title, read_subject
from plumbline_web.reports.trackers import TRACKERS, tracker_of
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

LONGEST_BODY = 60_000
"""GitHub takes 65,536 characters of an issue"""
LONGEST_SCRIPT = 60_000


class Stale(Refused):
    """Someone else saved meanwhile; `current` is what is kept now."""

    def __init__(self, current: Report) -> None:
        super().__init__("stale", f"{current.number} was changed meanwhile; nothing of yours is saved yet")
        self.current = current


@dataclass(frozen=True)
class Edited:
    """A report as someone left its form."""

    tracker: Tracker
    project: str
    title: str
    body: str
    script: str
    kept: tuple[Kind, ...]


@transaction.atomic
def draft_report(
    *, by: User, finding: Finding | None, problem: Problem | None, tracker: Tracker | None = None
) -> Report:
    """Begin a report about a finding, a problem, or a finding that is a problem."""
    check_role(by, Role.TRIAGER, "writing a report")
    subject = read_subject(finding=finding, problem=problem)
    chosen = tracker or Tracker(tracker_of(subject.framework))
    report = Report.objects.create(
        problem=problem,
        finding=finding,
        owner=by,
        tracker=chosen,
        project=TRACKERS[chosen].project,
        title=subject.content.title,
        body=write_body(subject.content, TRACKERS[chosen].sections),
        script=subject.generated.script,
        generated=subject.generated.script,
    )
    about = finding.number if finding is not None else problem.number if problem is not None else ""
    record(Subject.REPORT, report, f"began about {about}", actor=by)
    if problem is not None:
        record(Subject.PROBLEM, problem, f"report {report.number} begun", actor=by)
    if finding is not None:
        record(Subject.FINDING, finding, f"report {report.number} begun", actor=by)
    return report


@transaction.atomic
def edit(report: Report, edited: Edited, *, version: int, by: User) -> Report:
    """Save a report's form; what it replaces stays with the event.

    Raises:
        Stale: it was changed since `version`.
        Refused: a script that is no Python, a text that no tracker takes, or another script of a report that was sent.
    """
    check_role(by, Role.TRIAGER, "editing a report")
    report = Report.objects.select_for_update().get(pk=report.pk)
    if report.version != version:
        raise Stale(report)
    script = _clean_script(edited.script)
    if script == write_skeleton(framework_title(report)):
        script = ""  # nobody filled it in
    check_script(script)
    if script != report.script and report.state in SENT_STATES:
        raise Refused("illegal_state", f"{report.number} was sent with its script; another script is another report")
    if len(edited.body) > LONGEST_BODY:
        raise Refused("illegal_state", f"text: {len(edited.body):,} characters, and {LONGEST_BODY:,} is the most")
    body = _clean_lines(edited.body)
    if edited.tracker != report.tracker and body == _clean_lines(report.body) and _is_untouched(report):
        body = _write_for(report, edited.tracker)
    values = {
        "tracker": edited.tracker,
        "project": edited.project.strip() or TRACKERS[edited.tracker].project,
        "title": " ".join(edited.title.split()),
        "body": body,
        "script": script,
        "kept": sorted(edited.kept),
    }
    changed = {name: value for name, value in values.items() if getattr(report, name) != value}
    if not changed:
        return report
    before = {name: getattr(report, name) for name in changed}
    text = f"changed {', '.join(changed)}"
    if "script" in changed and report.state == ReportState.VERIFIED:
        text += "; the new script was not run yet"
        move(report, ReportState.DRAFT, text, actor=by, before=before, verified_by=None, **changed)
    else:
        change(report, text, actor=by, before=before, **changed)
    return report


def check_script(script: str) -> None:
    """Raises Refused for a script that is too long or no Python, naming the line."""
    if len(script) > LONGEST_SCRIPT:
        raise Refused("illegal_state", f"script: {len(script):,} characters, and {LONGEST_SCRIPT:,} is the most")
    try:
        ast.parse(script)
    except SyntaxError as error:
        raise Refused("illegal_state", f"script: line {error.lineno} is no Python ({error.msg})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Refused("illegal_state", f"script: this is no Python ({error})") from error


def _is_untouched(report: Report) -> bool:
    """Whether the text is still as it was written for its tracker."""
    return _clean_lines(report.body) == _clean_lines(_write_for(report, Tracker(report.tracker)))


def _write_for(report: Report, tracker: Tracker) -> str:
    content = read_subject(finding=report.finding, problem=report.problem).content
    return write_body(content, TRACKERS[tracker].sections)


def _clean_lines(text: str) -> str:
    """A browser sends CR LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _clean_script(script: str) -> str:
    script = _clean_lines(script).rstrip()
    return f"{script}\n" if script.strip() else ""
