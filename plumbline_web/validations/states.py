"""The moves of a validation's and of a framework run's state, each with its event; every other is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from plumbline_web.accounts.models import User
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.enums import RunState, State
from plumbline_web.validations.models import FrameworkRun, Validation

MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING, State.CANCELLED, State.FAILED}),
    State.RUNNING: frozenset({State.DONE, State.CANCELLED, State.FAILED}),
    State.DONE: frozenset({State.RUNNING}),  # judged again
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}

RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED, RunState.FAILED}),
    # to running again: its worker died, and another took it
    RunState.RUNNING: frozenset({RunState.RUNNING, RunState.ENDED, RunState.CANCELLED, RunState.FAILED}),
    RunState.ENDED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.FAILED: frozenset(),
}


CHANGE_LOCK = 0x706C756D
"""Key of the advisory lock under which the states of validations, runs and jobs change."""


@contextmanager
def change_of_state() -> Iterator[None]:
    """A transaction that alone changes states: submitting, cancelling, beginning and ending a job.

    A validation, its runs and their jobs change together, reached from either end; one lock before all rows makes
    deadlocks impossible. It is held for milliseconds: files are stored and requests are checked before it.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CHANGE_LOCK])
        yield


class IllegalMove(RuntimeError):
    """A state change that the state machine does not have."""


def move(validation: Validation, state: State, text: str, *, actor: User | None = None, **changes: Any) -> None:
    """Change the state of a locked validation, with other fields, and write the event."""
    if state not in MOVES[State(validation.state)]:
        raise IllegalMove(f"{validation.number} cannot go from {validation.state} to {state}")
    now = timezone.now()
    if state == State.RUNNING and validation.started_at is None:
        changes["started_at"] = now
    if state in (State.DONE, State.FAILED, State.CANCELLED):
        changes["ended_at"] = now
    changes |= {"state": state, "version": validation.version + 1}
    for name, value in changes.items():
        setattr(validation, name, value)
    validation.save(update_fields=list(changes))
    record(Subject.VALIDATION, validation, text, actor=actor)


def move_run(run: FrameworkRun, state: RunState, **changes: Any) -> None:
    """Change the state of a locked framework run, with other fields."""
    if state not in RUN_MOVES[RunState(run.state)]:
        raise IllegalMove(f"run {run.pk} cannot go from {run.state} to {state}")
    now = timezone.now()
    if state == RunState.RUNNING:
        changes["started_at"] = now
    else:
        changes["ended_at"] = now
    changes["state"] = state
    for name, value in changes.items():
        setattr(run, name, value)
    run.save(update_fields=list(changes))
