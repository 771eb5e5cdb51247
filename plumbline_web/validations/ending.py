"""What a job's failure means to the validations that wait for it."""

from __future__ import annotations

from plumbline_web.jobs.domain import finish
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.reports.outcomes import fail_run
from plumbline_web.validations.advance import advance_all, fail
from plumbline_web.validations.enums import RunState
from plumbline_web.validations.models import FrameworkRun, Validation
from plumbline_web.validations.states import move_run


def end_failed(job: Job, why: str) -> None:
    """End a locked job as failed, and with it what cannot go on without it: Plumbline broke, not the framework."""
    finish(job, JobState.FAILED, error=why)
    if job.kind == Kind.ENVIRONMENT:
        return  # nothing waits for it
    if job.kind == Kind.REPRODUCE:
        fail_run(job, why)
        return
    if job.kind == Kind.JUDGE:
        assert job.validation_id is not None
        fail(Validation.objects.select_for_update().get(pk=job.validation_id), f"judging broke: {why}")
        return
    assert job.run_id is not None
    run = FrameworkRun.objects.select_for_update().get(pk=job.run_id)
    if job.kind == Kind.CAPTURE and run.state in (RunState.QUEUED, RunState.RUNNING):
        move_run(run, RunState.FAILED)
    advance_all(run)
