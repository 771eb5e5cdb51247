"""The sweeper: jobs whose lease ran out go back to the queue once nothing of them runs any more."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.db.models import Q
from django.db.models.functions import Now

from plumbline_web.celery import app
from plumbline_web.jobs.domain import MOST_ATTEMPTS, dispatch, finish, lease_tag, requeue
from plumbline_web.jobs.enums import JobState, Queue
from plumbline_web.jobs.models import Job
from plumbline_web.jobs.scratch import remove_scratch
from plumbline_web.validations.ending import end_failed
from plumbline_web.validations.states import change_of_state
from workers.queues import SWEEP_EVERY_S, host_queue
from workers.sandbox import end_tagged

log = logging.getLogger(__name__)

SWEEP = "plumbline.sweep_jobs"

HOST_SILENT_S = 60.0
"""A machine that has not answered for so long is taken for gone: its processes, if any live, hold an old token."""

LOST_MESSAGE_S = 20.0
"""A job that waits for so long while its queue is empty has lost its message."""


def sweep(*, host: str) -> None:
    """Look at all open jobs once. Safe to run anywhere, any number of times at once."""
    expired = Job.objects.filter(state=JobState.RUNNING, lease_until__lt=Now())
    for job in expired:
        if job.host == host:
            reap_job(job.pk, job.token)
        else:
            app.send_task(
                "plumbline.reap_job", args=[job.pk, job.token], queue=host_queue(job.host), expires=SWEEP_EVERY_S
            )
    for job in expired.filter(lease_until__lt=Now() - timedelta(seconds=HOST_SILENT_S)):
        log.warning("job %s: %s does not answer; the job is given to another", job.pk, job.host)
        _give_back(job.pk, job.token)
    _send_lost_again()


def reap_job(job_id: int, token: int) -> None:
    """End the processes of an expired lease on this machine, and put the job back when they are gone."""
    tag = lease_tag(job_id, token)
    if end_tagged(tag):
        remove_scratch(tag)
        _give_back(job_id, token)
    else:
        log.error("job %s: its processes cannot be ended; it waits", job_id)


def _give_back(job_id: int, token: int) -> None:
    with change_of_state():
        job = (
            Job.objects.select_for_update()
            .filter(pk=job_id, token=token, state=JobState.RUNNING, lease_until__lt=Now())
            .first()
        )
        if job is None:
            return  # its worker came back, or another sweeper was quicker
        if job.cancel_asked:
            finish(job, JobState.CANCELLED)
        elif job.attempts >= MOST_ATTEMPTS:
            end_failed(job, f"its worker died {job.attempts} times while it ran")
        else:
            log.warning("job %s: the lease of %s ran out; it runs again", job.pk, job.worker)
            requeue(job)


def _send_lost_again() -> None:
    old = Q(dispatched_at__isnull=True) | Q(dispatched_at__lt=Now() - timedelta(seconds=LOST_MESSAGE_S))
    lost = Job.objects.filter(old, state=JobState.QUEUED, created_at__lt=Now() - timedelta(seconds=LOST_MESSAGE_S / 4))
    for queue in Queue.values:
        waiting = list(lost.filter(queue=queue))
        if waiting and not count_messages(queue):
            for job in waiting:
                dispatch(job)


def count_messages(queue: str) -> int:
    """Messages that wait in a queue of the broker."""
    with app.connection_for_read() as connection:
        return int(connection.default_channel.client.llen(queue))  # type: ignore[attr-defined]  # Redis's channel
