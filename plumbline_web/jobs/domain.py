"""Leases: who works on a job, until when, and whose writing counts.

PostgreSQL is the truth and its clock the only one: a message of the broker only says that a job might be waiting, and
may come twice or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from plumbline_web.celery import app
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job, LogLine
from plumbline_web.jobs.states import check_move

if TYPE_CHECKING:
    from plumbline_web.artefacts.models import Artefact
    from plumbline_web.environments.models import Wish
    from plumbline_web.reports.models import ScriptRun
    from plumbline_web.validations.models import FrameworkRun, Validation

LEASE_S = 12.0
HEARTBEAT_S = 0.5
"""A cancellation is seen within it."""

MOST_ATTEMPTS = 3
"""A job whose worker died so often would only kill the next one."""

RUN_JOB = "plumbline.run_job"


class LeaseLost(RuntimeError):
    """Another worker has the job, or nobody may have it any more: what was done must not be written."""


@dataclass(frozen=True)
class Lease:
    """The right to write about one job."""

    job_id: int
    token: int

    @property
    def tag(self) -> str:
        """What the processes of this lease carry in their environment."""
        return lease_tag(self.job_id, self.token)


def lease_tag(job_id: int, token: int) -> str:
    return f"job-{job_id}-{token}"


def open_job(
    kind: Kind,
    *,
    queue: str,
    run: FrameworkRun | None = None,
    validation: Validation | None = None,
    script_run: ScriptRun | None = None,
    wish: Wish | None = None,
    expected_s: float | None = None,
) -> Job:
    """Make a job and hand it to the broker once the transaction is through."""
    job = Job.objects.create(
        kind=kind, queue=queue, run=run, validation=validation, script_run=script_run, wish=wish, expected_s=expected_s
    )
    transaction.on_commit(lambda: dispatch(job))
    return job


def dispatch(job: Job) -> None:
    """Tell the workers of its queue that the job is waiting. A lost message is sent again by the sweeper."""
    Job.objects.filter(pk=job.pk).update(dispatched_at=Now())
    app.send_task(RUN_JOB, args=[job.pk], queue=job.queue)


def take(job_id: int, *, worker: str, host: str) -> Lease | None:
    """Take a waiting job; None where it is taken, over, or gone: the message came twice."""
    taken = Job.objects.filter(pk=job_id, state=JobState.QUEUED).update(
        state=JobState.RUNNING,
        token=F("token") + 1,
        attempts=F("attempts") + 1,
        worker=worker,
        host=host,
        process_group=None,
        started_at=Now(),
        heartbeat_at=Now(),
        lease_until=Now() + timedelta(seconds=LEASE_S),
        phase="starting",
        detail="",
    )
    if not taken:
        return None
    return Lease(job_id, Job.objects.values_list("token", flat=True).get(pk=job_id))


def beat(lease: Lease, *, detail: str | None = None, phase: str | None = None) -> bool:
    """Keep the lease alive, say what is going on, and learn whether the job is to be cancelled.

    Raises:
        LeaseLost: the job has been given to somebody else or was ended.
    """
    changes: dict[str, object] = {"heartbeat_at": Now(), "lease_until": Now() + timedelta(seconds=LEASE_S)}
    if detail is not None:
        changes["detail"] = detail[:300]
    if phase is not None:
        changes["phase"] = phase[:60]
    if not _held(lease).update(**changes):
        raise LeaseLost(f"job {lease.job_id}: the lease {lease.token} is no longer valid")
    return Job.objects.values_list("cancel_asked", flat=True).get(pk=lease.job_id)


def note_process_group(lease: Lease, process_group: int) -> None:
    if not _held(lease).update(process_group=process_group):
        raise LeaseLost(f"job {lease.job_id}: the lease {lease.token} is no longer valid")


def write_line(lease: Lease, number: int, text: str) -> None:
    """Add a piece of live output; a late writer's is refused."""
    with transaction.atomic():
        lock(lease)
        LogLine.objects.create(job_id=lease.job_id, token=lease.token, number=number, text=text)


def lock(lease: Lease) -> Job:
    """The job's row, locked, for the holder of its lease. Call it first in the transaction that writes the result.

    Raises:
        LeaseLost: the token is an old one, or the job is over.
    """
    job = _held(lease).select_for_update().first()
    if job is None:
        raise LeaseLost(f"job {lease.job_id}: the lease {lease.token} is no longer valid")
    return job


def finish(job: Job, state: JobState, *, error: str = "", log: Artefact | None = None) -> None:
    """End a locked job."""
    check_move(job, state)
    job.state = state
    job.error = error
    job.log = log
    job.ended_at = timezone.now()
    job.lease_until = None
    job.save(update_fields=["state", "error", "log", "ended_at", "lease_until"])


def requeue(job: Job, *, uncounted: bool = False) -> None:
    """Put a locked running job back; whoever held it can write no more, for the next lease has a higher token."""
    check_move(job, JobState.QUEUED)
    job.state = JobState.QUEUED
    job.lease_until = None
    job.phase, job.detail = "waiting", "its worker ended before it did; it runs again"
    if uncounted:
        job.attempts -= 1
    job.save(update_fields=["state", "lease_until", "phase", "detail", "attempts"])
    transaction.on_commit(lambda: dispatch(job))


def cancel_job(job: Job) -> None:
    """Cancel a locked job: at once while it waits, else by asking its worker."""
    if job.state == JobState.QUEUED:
        finish(job, JobState.CANCELLED)
    elif job.state == JobState.RUNNING:
        job.cancel_asked = True
        job.save(update_fields=["cancel_asked"])


def _held(lease: Lease) -> QuerySet[Job]:
    return Job.objects.filter(pk=lease.job_id, token=lease.token, state=JobState.RUNNING)
