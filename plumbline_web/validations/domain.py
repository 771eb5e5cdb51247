"""What people do to a validation: submit, cancel, retry, judge again."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from django.db import IntegrityError

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.artefacts.store import locate
from plumbline_web.catalog.models import Profile, Schedule
from plumbline_web.jobs.domain import cancel_job
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.advance import advance, attach_run, open_judging
from plumbline_web.validations.enums import RunRole, RunState, State
from plumbline_web.validations.models import Capture, FrameworkRun, Validation
from plumbline_web.validations.planning import (
    Preview,
    Resolved,
    describe_plan,
    need_of,
    preview,
    refuse_command,
    resolve,
)
from plumbline_web.validations.pushed import attach_pushed
from plumbline_web.validations.refusals import resolve_or_keep
from plumbline_web.validations.states import change_of_state, move, move_run
from plumbline_web.validations.submission import Submission
from workers.planner import PlannedRun
from workers.report.as_json import to_plain

__all__ = ["Preview", "Refused", "cancel", "preview", "rejudge", "retry", "submit"]

Code = Literal["stale", "forbidden", "illegal_state", "missing_artefact", "key_reused"]


class Refused(RuntimeError):
    """A wish that cannot be met now; `str()` is a sentence for its person."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def submit(
    submission: Submission,
    *,
    owner: User,
    idempotency_key: str = "",
    cloned_from: Validation | None = None,
    profile: Profile | None = None,
    schedule: Schedule | None = None,
    keeps_refusal: bool = False,
) -> tuple[Validation, bool]:
    """Check, plan and queue; the second value is False where the key was used before for the same submission.

    `keeps_refusal`: where it cannot be run here, the overview says so.

    Raises:
        InvalidSubmission: naming every wrong field; nothing is queued.
        Refused: the owner may not submit, or the key was used for something else.
    """
    if not owner.has_role(Role.SUBMITTER):
        raise Refused("forbidden", "a viewer cannot submit validations; ask an administrator for the role submitter")
    refuse_command(submission, owner)
    earlier = _find_by_key(owner, idempotency_key)
    if earlier is not None:
        return _same(earlier, submission), False
    resolved = resolve_or_keep(submission) if keeps_refusal else resolve(submission)
    try:
        with change_of_state():
            validation = _create(
                resolved, owner=owner, key=idempotency_key, cloned_from=cloned_from, profile=profile, schedule=schedule
            )
            for planned in resolved.plan.runs:
                _attach(validation, resolved, planned)
            record(Subject.VALIDATION, validation, "submitted", actor=owner)
            advance(validation)
    except IntegrityError:
        earlier = _find_by_key(owner, idempotency_key)  # submitted twice at the same moment
        if earlier is None:
            raise
        return _same(earlier, submission), False
    return validation, True


def cancel(validation: Validation, *, by: User, version: int | None = None) -> Validation:
    """End a validation that is under way; a repeated cancellation changes nothing.

    A judgement that is repeated on stored captures is only broken off: the earlier verdicts stay.

    Raises:
        Refused: it is another's, it has ended, or `version` is older than its last change.
    """
    _check_may_change(validation, by)
    with change_of_state():
        validation = _lock(validation, version)
        if validation.state == State.CANCELLED:
            return validation
        if not validation.is_open:
            raise Refused("illegal_state", f"{validation.number} has ended; there is nothing to cancel")
        for job in Job.objects.select_for_update().filter(validation=validation, state__in=_OPEN_JOBS):
            cancel_job(job)
        if validation.verdict:
            move(validation, State.DONE, "the repeated judgement was cancelled; the verdicts stay", actor=by, phase="")
            return validation
        for run in _lock_runs(validation):
            if not _is_needed_by_another(run, validation):
                _cancel_run(run)
        move(validation, State.CANCELLED, "cancelled", actor=by, phase="")
    return validation


def retry(validation: Validation, *, by: User) -> Validation:
    """Submit the same again, with fresh captures; a pushed capture is judged again as a new validation.

    Raises:
        Refused, InvalidSubmission: as for `submit`; it is still under way.
    """
    _check_may_change(validation, by)
    validation.refresh_from_db(fields=["state"])
    if validation.is_open:
        raise Refused("illegal_state", f"{validation.number} is still under way; cancel it first")
    again, _ = submit(
        submission_of(validation, fresh=validation.pushed_id is None),
        owner=by,
        cloned_from=validation,
        profile=validation.profile,
    )
    return again


def rejudge(validation: Validation, *, by: User) -> Validation:
    """Judge the stored captures again, with the checks as they are now; changes of verdict are recorded.

    Raises:
        Refused: another's, not done, or a stored file is gone.
    """
    _check_may_change(validation, by)
    with change_of_state():
        validation = _lock(validation, None)
        if validation.state != State.DONE:
            raise Refused(
                "illegal_state", f"{validation.number} is {validation.state}; only one that is done can be judged again"
            )
        _refuse_missing(validation)
        move(validation, State.RUNNING, "judged again", actor=by, phase="judging")
        open_judging(validation)
    return validation


def submission_of(validation: Validation, *, fresh: bool | None = None) -> Submission:
    """What was asked for, as it would be asked again."""
    return Submission(
        framework=validation.framework.name,
        model=validation.model.name,
        data=validation.data,
        checks=tuple(validation.checks) if validation.checks is not None else None,
        settings={
            name: tuple(value) if isinstance(value, list) else value for name, value in validation.settings.items()
        },
        inject=validation.inject or None,
        full=validation.full,
        fresh=validation.fresh if fresh is None else fresh,
        queue=validation.queue,
        time_limit_s=validation.time_limit_s,
        memory_limit_bytes=validation.memory_limit_bytes,
        capture=validation.pushed_id,
    )


_OPEN_JOBS = (JobState.QUEUED, JobState.RUNNING)


def _find_by_key(owner: User, key: str) -> Validation | None:
    return Validation.objects.filter(owner=owner, idempotency_key=key).first() if key else None


def _same(earlier: Validation, submission: Submission) -> Validation:
    if digest(submission_of(earlier)) != digest(submission):
        raise Refused("key_reused", f"the idempotency key was used for {earlier.number}, which asks for something else")
    return earlier


def digest(submission: Submission) -> str:
    return hashlib.sha256(json.dumps(to_plain(submission), sort_keys=True).encode()).hexdigest()


def _create(
    resolved: Resolved,
    *,
    owner: User,
    key: str,
    cloned_from: Validation | None,
    profile: Profile | None,
    schedule: Schedule | None,
) -> Validation:
    asked = resolved.submission
    return Validation.objects.create(
        owner=owner,
        framework=resolved.framework,
        environment=resolved.environment,
        model=resolved.model,
        profile=profile,
        schedule=schedule,
        cloned_from=cloned_from,
        data=asked.data,
        checks=list(asked.checks) if asked.checks is not None else None,
        settings=to_plain(asked.settings),
        inject=asked.inject or "",
        full=asked.full,
        fresh=asked.fresh,
        time_limit_s=asked.time_limit_s,
        memory_limit_bytes=asked.memory_limit_bytes,
        queue=asked.queue,
        spec=to_plain(resolved.spec),
        plan=describe_plan(resolved.plan) | {"data_digest": resolved.data_digest},
        phase="waiting for a worker",
        idempotency_key=key,
        pushed=resolved.capture,
    )


def _attach(validation: Validation, resolved: Resolved, planned: PlannedRun) -> None:
    need = need_of(resolved, planned)
    if resolved.capture is not None:
        steps = planned.captured_steps
        attach_pushed(validation, resolved.capture, need=need, spec=to_plain(planned.spec), steps=steps)
        return
    attach_run(
        validation,
        role=RunRole(planned.role.value),
        need=need,
        spec=to_plain(planned.spec),
        steps=planned.captured_steps,
        modules=planned.modules or "",
        memory=planned.memory,
        full=validation.full and not planned.memory,
        fresh=validation.fresh or bool(planned.spec.command),  # nobody knows what else a command reads
    )


def _cancel_run(run: FrameworkRun) -> None:
    if run.state not in (RunState.QUEUED, RunState.RUNNING):
        return
    for job in Job.objects.select_for_update().filter(run=run, state__in=_OPEN_JOBS):
        cancel_job(job)
    move_run(run, RunState.CANCELLED)


def _is_needed_by_another(run: FrameworkRun, validation: Validation) -> bool:
    return run.validations.filter(state__in=[State.QUEUED, State.RUNNING]).exclude(pk=validation.pk).exists()


def _lock_runs(validation: Validation) -> list[FrameworkRun]:
    return list(FrameworkRun.objects.select_for_update().filter(validation_runs__validation=validation).order_by("pk"))


def _lock(validation: Validation, version: int | None) -> Validation:
    """The row, locked; refused where it has ended, or ended and begun again, since `version`.

    That a queued one has started meanwhile does not make the wish an old one.
    """
    locked: Validation = Validation.objects.select_for_update().get(pk=validation.pk)
    is_another = not locked.is_open or bool(locked.verdict)
    if version is not None and version != locked.version and is_another and locked.state != State.CANCELLED:
        raise Refused(
            "stale", f"{locked.number} has changed since the page was drawn: it is {locked.state}; look again"
        )
    return locked


def _check_may_change(validation: Validation, by: User) -> None:
    if not Validation.objects.changeable_by(by).filter(pk=validation.pk).exists():
        raise Refused(
            "forbidden",
            f"{validation.number} belongs to {validation.owner.username}; only its owner or a triager may change it",
        )


def _refuse_missing(validation: Validation) -> None:
    captures = Capture.objects.filter(run__validation_runs__validation=validation).prefetch_related("files__artefact")
    for capture in captures:
        for file in capture.files.all():
            if not locate(file.artefact.digest).is_file():
                raise Refused(
                    "missing_artefact",
                    f"the capture file {file.name} of {validation.number} is gone from the disk; "
                    "retry with fresh captures",
                )
