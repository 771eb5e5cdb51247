"""When a schedule submits, and that it does so once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused as AccountRefused
from plumbline_web.accounts.models import User
from plumbline_web.catalog.domain import submission_of
from plumbline_web.catalog.enums import Trigger
from plumbline_web.catalog.installed import get_environment
from plumbline_web.catalog.models import Schedule
from plumbline_web.catalog.releases import IndexUnreachable, find_newest_release, is_newer
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.domain import Refused, submit
from plumbline_web.validations.models import Validation
from plumbline_web.validations.submission import InvalidSubmission

log = logging.getLogger(__name__)

CATCH_UP = timedelta(hours=12)
"""A server that was down at the hour makes up for it within this; later, the next night is near."""


@dataclass(frozen=True)
class Release:
    """What the index said of a package: the newest release, or why it is not known."""

    newest: str | None
    problem: str = ""


def run_nightly(now: datetime) -> list[Validation]:
    """Submit what is due by the hour; safe to call as often as one likes. The validations that are new."""
    due = [schedule for schedule in _enabled(Trigger.NIGHTLY) if is_due(schedule, now)]
    made = [_attempt(schedule, key=f"{_last_hour(schedule, now):%Y-%m-%dT%H}", at=now) for schedule in due]
    return [validation for validation in made if validation is not None]


def run_releases(now: datetime) -> list[Validation]:
    """Look at the index, once a package, and submit where the environment here has changed. The new validations."""
    known: dict[str, Release] = {}
    made: list[Validation] = []
    for schedule in _enabled(Trigger.RELEASE):
        package = schedule.framework.package
        if package not in known:
            known[package] = _look(package)
        validation = _follow_release(schedule, known[package], at=now)
        if validation is not None:
            made.append(validation)
    return made


def run_now(schedule: Schedule, *, by: User) -> Validation:
    """Submit at once, whoever's hour it is; asked for twice within a minute, once.

    Raises:
        accounts Refused: `by` is no administrator. Refused, InvalidSubmission: as `submit`.
    """
    if not by.has_role(Role.ADMINISTRATOR):
        raise AccountRefused("forbidden", "Only an administrator runs schedules; ask one.")
    now = timezone.now()
    validation, made = _submit(schedule, key=f"now-{now:%Y-%m-%dT%H:%M}")
    Schedule.objects.filter(pk=schedule.pk).update(last_run_at=now, last_error="")
    if made:
        record(Subject.SCHEDULE, schedule, f"run by hand: {validation.number}", actor=by)
    return validation


def is_due(schedule: Schedule, now: datetime) -> bool:
    """Whether the last time that the hour began has not been served. One that never ran waits for its hour."""
    begun = _last_hour(schedule, now)
    if schedule.last_run_at is None:
        return now.hour == schedule.hour
    return schedule.last_run_at < begun and now - begun < CATCH_UP


def _last_hour(schedule: Schedule, now: datetime) -> datetime:
    """When the schedule's hour last began, at or before `now`, which is in UTC."""
    begun = now.replace(hour=schedule.hour, minute=0, second=0, microsecond=0)
    return begun if begun <= now else begun - timedelta(days=1)


def _follow_release(schedule: Schedule, release: Release, *, at: datetime) -> Validation | None:
    environment = get_environment(schedule.framework)
    validation = None
    if not schedule.validations.filter(environment=environment).exists():
        validation = _attempt(schedule, key=f"environment-{environment.digest[:32]}", at=at)
    if validation is None and not schedule.validations.filter(environment=environment).exists():
        return None  # the attempt failed, and has said why
    _note(schedule, release, installed=environment.version)
    return validation


def _note(schedule: Schedule, release: Release, *, installed: str) -> None:
    """Say what the index has that is not installed, or why that is not known."""
    package, newest = schedule.framework.package, release.newest
    problem = release.problem
    if newest is not None and is_newer(newest, than=installed):
        problem = (
            f"{package} {newest} is released and {installed} is installed here; "
            f"it cannot be validated until it is installed."
        )
        if newest != schedule.last_release:
            record(Subject.SCHEDULE, schedule, f"{package} {newest} was released; {installed} is installed")
    Schedule.objects.filter(pk=schedule.pk).update(
        last_error=problem, last_release=newest if newest is not None else schedule.last_release
    )


def _attempt(schedule: Schedule, *, key: str, at: datetime) -> Validation | None:
    """Submit, or write down why not: one schedule's fault is not the others'. None where nothing new was made."""
    error = ""
    validation, made = None, False
    try:
        validation, made = _submit(schedule, key=key)
    except (InvalidSubmission, Refused) as refused:
        error = f"Nothing was submitted: {refused}"
    except Exception as broken:
        log.exception("schedule %s", schedule.pk)
        error = f"Nothing was submitted: Plumbline broke ({type(broken).__name__}); the server's log says where."
    Schedule.objects.filter(pk=schedule.pk).update(last_run_at=at, last_error=error)
    if error and error != schedule.last_error:
        record(Subject.SCHEDULE, schedule, error)
    return validation if made else None


def _submit(schedule: Schedule, *, key: str) -> tuple[Validation, bool]:
    return submit(
        submission_of(schedule.profile, framework=schedule.framework.name, model=schedule.model),
        owner=schedule.owner,
        idempotency_key=f"schedule-{schedule.pk}-{key}",
        profile=schedule.profile,
        schedule=schedule,
    )


def _look(package: str) -> Release:
    try:
        return Release(find_newest_release(package))
    except IndexUnreachable as error:
        log.warning("%s", error)
        return Release(None, f"Whether {package} has a new release is not known: {error}")


def _enabled(trigger: Trigger) -> list[Schedule]:
    return list(
        Schedule.objects.filter(enabled=True, trigger=trigger)
        .select_related("profile", "framework", "owner")
        .order_by("pk")
    )
