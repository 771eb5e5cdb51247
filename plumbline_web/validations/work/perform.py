"""From a message to a done job: lease, heartbeat, work, and how each way to end is written."""

from __future__ import annotations

import logging

from django.db import InterfaceError, OperationalError, connection

from checks.errors import BadRequest
from plumbline_web.environments import work as environment
from plumbline_web.jobs.devices import TooFewDevices
from plumbline_web.jobs.domain import Lease, LeaseLost, finish, lock, requeue, take
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.reports import work as script
from plumbline_web.validations.ending import end_failed
from plumbline_web.validations.states import change_of_state
from plumbline_web.validations.work import capture, judging, reference
from plumbline_web.validations.work.computing import ComputingFailed
from plumbline_web.validations.work.heart import Heart, beating
from plumbline_web.validations.work.scratch import scratch_directory

log = logging.getLogger(__name__)

KINDS = {
    Kind.CAPTURE: capture.perform,
    Kind.REFERENCE: reference.perform,
    Kind.JUDGE: judging.perform,
    Kind.REPRODUCE: script.perform,
    Kind.ENVIRONMENT: environment.perform,
}


def perform(job_id: int, *, worker: str, host: str) -> None:
    """Take the job and do it; a message for one that is taken or over does nothing."""
    lease = take(job_id, worker=worker, host=host)
    if lease is None:
        return
    job = Job.objects.select_related("run__framework", "run__model", "validation__model").get(pk=job_id)
    with scratch_directory(lease) as directory, beating(lease) as heart:
        try:
            KINDS[Kind(job.kind)](lease, job, heart, directory)
            _end_broken_off(lease, heart)
        except LeaseLost as error:
            log.warning("%s; what this worker did is dropped", error)
        except (OperationalError, InterfaceError) as error:
            # The database is away, and nothing was written. The lease runs out, and the job begins again.
            log.warning("job %s: the database does not answer (%s); its lease is left to run out", job_id, error)
            connection.close()
        except (ComputingFailed, TooFewDevices, BadRequest) as error:
            _end_failed(lease, str(error))
        except Exception as error:  # the job must end, whatever broke
            _end_failed(lease, f"{type(error).__name__}: {error}; the worker's log has the traceback")


def _end_broken_off(lease: Lease, heart: Heart) -> None:
    """Write the end of a job that was cancelled, or given back by a worker that stops; a finished one stays so."""
    if heart.lost or not heart.cancelled():
        return
    with change_of_state():
        job = Job.objects.select_for_update().get(pk=lease.job_id)
        if job.state != JobState.RUNNING or job.token != lease.token:
            return
        job = lock(lease)
        if heart.asked:
            finish(job, JobState.CANCELLED)
        else:
            requeue(job, uncounted=True)


def _end_failed(lease: Lease, why: str) -> None:
    try:
        with change_of_state():
            end_failed(lock(lease), why)
        log.exception("job %s broke", lease.job_id)
    except LeaseLost as error:
        log.warning("%s; its failure is dropped: %s", error, why)
