"""What administrators do to environments: build, check, remove, evict, and break off."""

from __future__ import annotations

import re
from collections.abc import Sequence

from checks.errors import BadRequest
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.models import User
from plumbline_web.environments.enums import Verb
from plumbline_web.environments.models import Wish
from plumbline_web.jobs.domain import cancel_job, open_job
from plumbline_web.jobs.enums import JobState, Kind, Queue
from plumbline_web.jobs.models import Job
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.states import change_of_state
from workers.environments.resolving import parse_wish
from workers.environments.store import Store, check_name

MOST_OTHERS = 20
PYTHON = re.compile(r"3\.\d{1,2}")
OPEN = (JobState.QUEUED, JobState.RUNNING)


def create(framework: str, *, others: Sequence[str], name: str, python: str, by: User) -> Wish:
    """Ask for an environment of one release of a framework.

    Raises:
        Refused: no administrator, or something is asked that no build can be begun with.
    """
    _require_administrator(by)
    try:
        wish = parse_wish(framework, others)
        if name:
            check_name(name)
    except BadRequest as error:
        field = {"with": "others"}.get(error.field, error.field)
        raise Refused("invalid", f"{error.found}; {error.remedy}.", field=field) from None
    if len(others) > MOST_OTHERS:
        raise Refused("invalid", f"{len(others)} requirements; give at most {MOST_OTHERS}.", field="others")
    if any(each.url is not None for each in (wish.framework, *wish.others)):
        raise Refused("invalid", "An address is no release; name what is on the package index.", field="framework")
    if python and not PYTHON.fullmatch(python):
        raise Refused("invalid", f"{python!r} is no version of Python; write it as 3.11.", field="python")
    return _ask(
        Wish(verb=Verb.CREATE, framework=framework, others=list(others), name=name or wish.name, python=python), by
    )


def check(name: str, *, by: User) -> Wish:
    """Ask whether an environment is as it was built and still imports. Raises Refused."""
    _require_administrator(by)
    _find(name)
    return _ask(Wish(verb=Verb.CHECK, name=name), by)


def remove(name: str, *, by: User) -> Wish:
    """Ask for a name to be forgotten, and for what no name means any more to be deleted. Raises Refused."""
    _require_administrator(by)
    _find(name)
    return _ask(Wish(verb=Verb.REMOVE, name=name), by)


def evict(days: float, *, by: User) -> Wish:
    """Ask for what no run has used for so many days to be removed. Raises Refused."""
    _require_administrator(by)
    if not 0 < days <= 36500:
        raise Refused("invalid", f"{days:g} is no number of days; give one above 0.", field="days")
    return _ask(Wish(verb=Verb.EVICT, days=days), by)


def cancel(wish: Wish, *, by: User) -> None:
    """Break it off; a build keeps what it has, and the same one goes on from there.

    Raises:
        Refused: no administrator, or it has ended.
    """
    _require_administrator(by)
    with change_of_state():
        job = Job.objects.select_for_update().filter(wish=wish, state__in=OPEN).first()
        if job is None:
            raise Refused("illegal_state", "It has ended; there is nothing to cancel.")
        cancel_job(job)
        record(Subject.ENVIRONMENT, wish, "cancelled", actor=by)


def _ask(wish: Wish, by: User) -> Wish:
    """Store it and open its job; the same that is under way already is one."""
    with change_of_state():
        fields = ("verb", "name", "framework", "others", "python", "days")
        same = {field: getattr(wish, field) for field in fields}
        earlier = Wish.objects.filter(**same, jobs__state__in=OPEN).first()
        if earlier is not None:
            return earlier
        wish.asked_by = by
        wish.save()
        record(Subject.ENVIRONMENT, wish, f"{wish.get_verb_display()} asked for: {wish}", actor=by)
        open_job(Kind.ENVIRONMENT, queue=Queue.CPU, wish=wish)
    return wish


def _find(name: str) -> None:
    if name not in Store().list_names():
        raise Refused("illegal_state", f"There is no environment {name[:80]} any more; look again.")


def _require_administrator(by: User) -> None:
    if not by.has_role(Role.ADMINISTRATOR):
        raise Refused("forbidden", "Only an administrator changes environments; ask one.")
