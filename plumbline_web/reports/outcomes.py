"""The end of a script's run: what it says, and what follows for its report."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from plumbline_web.jobs.models import Job
from plumbline_web.reports.enums import Purpose, ReportState, RunState
from plumbline_web.reports.environments import Installed, list_differences
from plumbline_web.reports.judging import Said, judge_run
from plumbline_web.reports.models import Report, ScriptRun
from plumbline_web.reports.permissions import digest_of
from plumbline_web.reports.states import change, move
from plumbline_web.reports.telling import tell_upstream
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from workers.runner import ProcessEnd

MOST_OUTPUT = 60_000
"""characters of the output that are kept: the last ones"""


@dataclass(frozen=True)
class Ended:
    """A run as the worker saw it."""

    end: ProcessEnd
    output: str
    installed: Installed
    device: str


def begin_run(run: ScriptRun) -> None:
    """A worker has taken it; once more where an earlier one died."""
    ScriptRun.objects.filter(pk=run.pk, state__in=[RunState.QUEUED, RunState.RUNNING]).update(state=RunState.RUNNING)


def end_run(run: ScriptRun, ended: Ended) -> None:
    """Write a locked run's end and what follows; call it in the transaction that ends its job."""
    report = Report.objects.select_for_update().get(pk=run.report_id)
    output = ended.output.replace("\0", "\N{REPLACEMENT CHARACTER}")[-MOST_OUTPUT:]
    said = judge_run(
        exit_code=ended.end.exit_code,
        ending=ended.end.ending,
        last_error=ended.end.last_error,
        output=output,
        differences=_compare(report, run, ended.installed),
    )
    run.state = RunState.ENDED
    run.python, run.packages, run.device = ended.installed.python, dict(ended.installed.packages), ended.device
    run.exit_code, run.ending, run.elapsed_s = ended.end.exit_code, ended.end.ending, ended.end.elapsed_s
    run.output, run.verdict, run.shows = output, said.sentence, said.shows
    run.ended_at = timezone.now()
    run.save()
    _follow(report, run, said)


def fail_run(job: Job, why: str) -> None:
    """The script was not run: Plumbline broke, or has no such environment."""
    assert job.script_run_id is not None
    run = ScriptRun.objects.select_for_update().get(pk=job.script_run_id)
    if run.is_open:
        run.state, run.verdict, run.ended_at = RunState.FAILED, f"the script could not be run: {why}", timezone.now()
        run.save(update_fields=["state", "verdict", "ended_at"])
        record(Subject.REPORT, run.report, run.verdict)


def _compare(report: Report, run: ScriptRun, installed: Installed) -> tuple[str, ...]:
    """To show a finding, the script must run where the finding was made; to see whether it is mended, elsewhere."""
    if run.purpose != Purpose.VERIFY or report.finding is None:
        return ()
    environment = report.finding.validation.environment
    return list_differences(
        python=installed.python,
        packages=installed.packages,
        wanted_python=environment.python,
        wanted=environment.packages,
    )


def _follow(report: Report, run: ScriptRun, said: Said) -> None:
    name = run.environment or "the framework's own environment"
    if run.digest != digest_of(report.script):
        record(Subject.REPORT, report, f"a run of an earlier script ended in {name}: {said.sentence}")
    elif report.state == ReportState.DRAFT and run.purpose == Purpose.VERIFY and said.shows:
        move(report, ReportState.VERIFIED, f"verified in {name}: {said.sentence}", verified_by=run)
    elif report.state == ReportState.VERIFIED and said.shows is False:
        move(report, ReportState.DRAFT, f"no longer verified in {name}: {said.sentence}", verified_by=None)
    elif report.state == ReportState.VERIFIED and said.shows:
        change(report, f"verified again in {name}", verified_by=run)
    elif report.state == ReportState.SENT and said.shows is False:
        _tell(report, ReportState.CLOSED, f"closed: mended in {name}, where {said.sentence}")
    elif report.state == ReportState.CLOSED and said.shows:
        _tell(report, ReportState.SENT, f"reopened: not mended in {name}, where {said.sentence}")
    else:
        record(Subject.REPORT, report, f"ran in {name}: {said.sentence}")


def _tell(report: Report, state: ReportState, text: str) -> None:
    move(report, state, text)
    tell_upstream(report, text, by=None)
