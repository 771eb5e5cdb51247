"""The moves of a job's state; every other is refused."""

from __future__ import annotations

from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job

MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.QUEUED}),
    JobState.DONE: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class IllegalMove(RuntimeError):
    """A state change that the state machine does not have."""


def check_move(job: Job, state: JobState) -> None:
    """Raises IllegalMove unless the job may go from its state to `state`."""
    if state not in MOVES[JobState(job.state)]:
        raise IllegalMove(f"job {job.pk} cannot go from {job.state} to {state}")
