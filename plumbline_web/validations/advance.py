"""What a validation does next: wait for its runs, ask for references, judge, or run another pass.

`advance` is called inside the transaction of whatever ended, and looks at the rows alone: it may be called once too
often, never once too seldom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline_web.jobs.domain import open_job
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.validations.enums import RunRole, RunState, State
from plumbline_web.validations.models import FrameworkRun, Validation, ValidationRun
from plumbline_web.validations.needs import expected_seconds, find_stored
from plumbline_web.validations.states import move


def advance(validation: Validation) -> None:
    """Open the next job of a locked, open validation, if it waits for none."""
    if not validation.is_open:
        return
    runs = {link.role: link.run for link in validation.validation_runs.select_related("run")}
    for run in runs.values():
        if run.state in (RunState.FAILED, RunState.CANCELLED):
            job = Job.objects.filter(run=run).order_by("-pk").first()
            why = job.error if job is not None and job.error else f"it was {run.state}"
            fail(validation, f"the framework run {run.pk} could not be made: {why}")
            return
    waiting = [run for run in runs.values() if run.state != RunState.ENDED]
    if waiting:
        _say(
            validation, "waiting for a worker" if all(r.state == RunState.QUEUED for r in waiting) else "framework run"
        )
        return
    if _wait_for_references(validation, runs.get(RunRole.RUN)):
        return
    open_judging(validation)


def advance_all(run: FrameworkRun) -> None:
    """Advance every open validation that has part in a run, in the order of their numbers."""
    waiting = Validation.objects.select_for_update().filter(
        validation_runs__run=run, state__in=[State.QUEUED, State.RUNNING]
    )
    for validation in waiting.order_by("pk"):
        advance(validation)


def start(validation: Validation) -> None:
    """A worker has begun with something of a validation that waited."""
    if validation.state == State.QUEUED:
        move(validation, State.RUNNING, "started", phase="framework run")


def fail(validation: Validation, why: str) -> None:
    """End a locked validation without verdicts: Plumbline itself broke."""
    if validation.is_open:
        text = f"failed: {why}"
        move(validation, State.DONE if validation.verdict else State.FAILED, text, error=why, phase="")


def _wait_for_references(validation: Validation, run: FrameworkRun | None) -> bool:
    """Whether the references of the asked run are still to come; asks for them where nobody has."""
    if run is None or not validation.plan["needs_reference"] or not hasattr(run, "capture"):
        return False
    job = Job.objects.filter(run=run, kind=Kind.REFERENCE).exclude(state=JobState.CANCELLED).order_by("-pk").first()
    if job is None:
        open_job(
            Kind.REFERENCE,
            queue=validation.queue,
            run=run,
            expected_s=expected_seconds(Kind.REFERENCE, validation.framework, validation.model),
        )
    elif job.state == JobState.DONE:
        return False
    elif job.state == JobState.FAILED:
        fail(validation, f"the reference could not be computed: {job.error}")
        return True
    _say(validation, "reference")
    return True


def open_judging(validation: Validation) -> None:
    """Ask for the verdicts of a locked validation."""
    if Job.objects.filter(
        validation=validation, kind=Kind.JUDGE, state__in=[JobState.QUEUED, JobState.RUNNING]
    ).exists():
        return
    open_job(
        Kind.JUDGE,
        queue=validation.queue,
        validation=validation,
        expected_s=expected_seconds(Kind.JUDGE, validation.framework, validation.model),
    )
    _say(validation, "judging")


def attach_run(
    validation: Validation,
    *,
    role: RunRole,
    need: str,
    spec: Mapping[str, Any],
    steps: Sequence[int],
    modules: str,
    full: bool,
    fresh: bool,
    memory: bool = False,
) -> FrameworkRun:
    """Give a validation a framework run: an equal one that is stored or under way, else a new one with its job."""
    stored = find_stored(need, fresh=fresh)
    if stored is not None:
        # locked, so that a cancellation sees this validation or this one sees the cancellation
        stored = FrameworkRun.objects.select_for_update().get(pk=stored.pk)
        if stored.state in (RunState.CANCELLED, RunState.FAILED):
            stored = None
    run = stored or FrameworkRun.objects.create(
        need=need,
        framework=validation.framework,
        environment=validation.environment,
        model=validation.model,
        spec=dict(spec),
        steps=list(steps),
        modules=modules,
        memory=memory,
        full=full,
        time_limit_s=validation.time_limit_s,
        memory_limit_bytes=validation.memory_limit_bytes,
    )
    ValidationRun.objects.create(validation=validation, run=run, role=role, reused=stored is not None)
    if stored is None:
        open_job(
            Kind.CAPTURE,
            queue=validation.queue,
            run=run,
            expected_s=expected_seconds(Kind.CAPTURE, validation.framework, validation.model),
        )
    return run


def _say(validation: Validation, phase: str) -> None:
    if validation.phase != phase:
        validation.phase = phase
        validation.save(update_fields=["phase"])
