"""Profiles, and the schedules that repeat them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import IntegrityError, transaction

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.catalog.enums import Trigger
from plumbline_web.catalog.installed import get_framework
from plumbline_web.catalog.models import Profile, Schedule
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.planning import resolve
from plumbline_web.validations.submission import InvalidSubmission, Submission, read_submission
from workers.report.as_json import to_plain

LONGEST_NAME = 100


def create_profile(
    name: str, *, data: str, checks: Sequence[str] | None, settings: Mapping[str, object], by: User
) -> tuple[Profile, bool]:
    """A new version of the profile `name`; the latest one, and False, where that says the same already.

    Raises:
        Refused: `by` is no administrator, or the name is empty or too long.
    """
    _require_administrator(by)
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME:
        sentence = f"A name of {len(name)} characters was given; give 1 to {LONGEST_NAME}."
        raise Refused("invalid", sentence, field="name")
    chosen = list(checks) if checks is not None else None
    plain = to_plain(settings)
    with transaction.atomic():
        latest = Profile.objects.select_for_update().filter(name=name).order_by("-version").first()
        if latest is not None and (latest.data, latest.checks, latest.settings) == (data, chosen, plain):
            return latest, False
        try:
            with transaction.atomic():
                return Profile.objects.create(
                    name=name, version=latest.version + 1 if latest else 1, data=data, checks=chosen, settings=plain
                ), True
        except IntegrityError:
            sentence = f"Somebody made {name} at the same moment; look at theirs first."
            raise Refused("illegal_state", sentence, field="name") from None


def create_schedule(profile: Profile, *, framework: str, model: str, trigger: Trigger, hour: int, by: User) -> Schedule:
    """Repeat a profile on a framework and a model. `hour`: of the day in UTC, for the nightly ones.

    Raises:
        Refused: `by` is no administrator, the hour is none, or the schedule is there already.
        InvalidSubmission: what it would submit cannot be run here.
    """
    _require_administrator(by)
    if not 0 <= hour < 24:
        raise Refused("invalid", f"{hour} is no hour of a day; give 0 to 23, in UTC.", field="hour")
    resolve(submission_of(profile, framework=framework, model=model))
    try:
        with transaction.atomic():
            schedule = Schedule.objects.create(
                profile=profile,
                framework=get_framework(framework),
                model=model,
                trigger=trigger,
                hour=hour,
                owner=by,
            )
            record(Subject.SCHEDULE, schedule, "made", actor=by)
    except IntegrityError:
        sentence = f"{profile} runs {trigger.label} on {framework} and {model} already; change that schedule."
        raise Refused("illegal_state", sentence) from None
    return schedule


def enable(schedule: Schedule, *, by: User) -> None:
    """Let a schedule submit again. Raises Refused."""
    _set_enabled(schedule, True, text="enabled", by=by)


def disable(schedule: Schedule, *, by: User) -> None:
    """Let a schedule rest. Raises Refused."""
    _set_enabled(schedule, False, text="disabled", by=by)


def submission_of(profile: Profile, *, framework: str, model: str) -> Submission:
    """What a schedule submits: always with a fresh run, or a changed environment's noise would go unseen.

    Raises:
        InvalidSubmission: a setting is not one of this version any more.
    """
    return read_submission(
        {
            "framework": framework,
            "model": model,
            "data": profile.data,
            "checks": profile.checks,
            "settings": profile.settings,
            "fresh": True,
        }
    )


def _set_enabled(schedule: Schedule, enabled: bool, *, text: str, by: User) -> None:
    _require_administrator(by)
    with transaction.atomic():
        changed = Schedule.objects.filter(pk=schedule.pk).exclude(enabled=enabled).update(enabled=enabled)
        if changed:
            record(Subject.SCHEDULE, schedule, text, actor=by)
    schedule.refresh_from_db()


def _require_administrator(by: User) -> None:
    if not by.has_role(Role.ADMINISTRATOR):
        raise Refused("forbidden", "Only an administrator changes profiles and schedules; ask one.")


__all__ = [
    "InvalidSubmission",
    "create_profile",
    "create_schedule",
    "disable",
    "enable",
    "submission_of",
]
