"""Asking for a run of a report's script."""

from __future__ import annotations

from django.db import transaction

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.jobs.domain import open_job
from plumbline_web.jobs.enums import Kind as JobKind
from plumbline_web.reports.enums import SENT_STATES, Purpose, RunState
from plumbline_web.reports.environments import OWN, exists
from plumbline_web.reports.models import Report, ScriptRun
from plumbline_web.reports.permissions import check_role, digest_of, may_run
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.domain import Refused
from workers.queues import CPU, GPU


def run_script(report: Report, *, environment: str, by: User) -> ScriptRun:
    """Ask for a run of the script as it stands.

    Raises:
        Refused: not this person's to run; no script; one is under way; no such environment.
    """
    check_role(by, Role.TRIAGER, "running a script")
    if report.script.strip() and not may_run(report, by):
        raise Refused(
            "forbidden",
            "a script that a person wrote is run for administrators alone, until one of them had it run as it stands",
        )
    return start_run(report, environment=environment, by=by)


@transaction.atomic
def start_run(report: Report, *, environment: str, by: User | None) -> ScriptRun:
    """Ask for a run; `by`: None for the schedule, which runs what was run before."""
    report = Report.objects.select_for_update().get(pk=report.pk)
    if not report.script.strip():
        raise Refused("illegal_state", f"{report.number} has no reproducer: write one, then run it")
    if report.runs.filter(state__in=[RunState.QUEUED, RunState.RUNNING]).exists():
        raise Refused("illegal_state", f"the script of {report.number} is being run already")
    if not exists(environment):
        raise Refused("illegal_state", f"there is no environment {environment!r} here")
    purpose = Purpose.MENDED if report.state in SENT_STATES else Purpose.VERIFY
    run = ScriptRun.objects.create(
        report=report,
        purpose=purpose,
        script=report.script,
        digest=digest_of(report.script),
        environment=environment,
        asked_by=by,
        approved=by is not None and by.has_role(Role.ADMINISTRATOR),
    )
    open_job(JobKind.REPRODUCE, queue=_queue_of(report), script_run=run)
    named = environment if environment != OWN else "the framework's own environment"
    record(Subject.REPORT, report, f"asked for a run of the script in {named}", actor=by)
    return run


def _queue_of(report: Report) -> str:
    finding = report.finding
    return finding.validation.queue if finding is not None and finding.validation.queue == GPU else CPU
