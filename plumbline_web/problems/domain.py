"""What people do to problems: write down a new one, change one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.problems.documents import FIELDS
from plumbline_web.problems.enums import Provenance
from plumbline_web.problems.models import Problem
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.domain import Refused

LONGEST_SLUG = 100

CHANGEABLE = tuple(name for name in FIELDS if name != "slug")
"""A slug is how other tools name a problem: it stays."""


@transaction.atomic
def create_problem(fields: Mapping[str, Any], *, by: User, provenance: Provenance) -> Problem:
    """Write down a problem that was found here. `fields`: some of CHANGEABLE.

    Raises:
        Refused: not a triager, or a provenance that only loading the catalogue gives.
    """
    _check_may(by)
    if provenance not in (Provenance.FOUND, Provenance.FIRST_RAISED):
        raise Refused("illegal_state", f"a problem that is written down here is not {provenance.label}")
    values = {"first_seen": timezone.localdate().isoformat(), **fields}
    problem = Problem.objects.create(
        slug=make_slug(values["framework"], values["title"]), provenance=provenance, **values
    )
    record(Subject.PROBLEM, problem, f"written down, {provenance.label}", actor=by)
    return problem


@transaction.atomic
def change_problem(problem: Problem, fields: Mapping[str, Any], *, version: int, by: User) -> tuple[str, ...]:
    """Change fields of a problem; names of those that differ now. Loading the catalogue keeps what people changed.

    Raises:
        Refused: not a triager, or somebody changed it since `version`.
    """
    _check_may(by)
    locked = Problem.objects.select_for_update(of=("self",)).defer("search").get(pk=problem.pk)
    if locked.version != version:
        raise Refused("stale", f"{locked.number} was changed since the page was drawn; what you typed is still below")
    changed = [name for name, value in fields.items() if name in (*CHANGEABLE, "provenance")]
    changed = [name for name in changed if getattr(locked, name) != fields[name]]
    before = {name: getattr(locked, name) for name in changed}
    for name in changed:
        setattr(locked, name, fields[name])
    if changed:
        locked.version += 1
        locked.save(update_fields=[*changed, "version", "updated_at"])
        after = {name: getattr(locked, name) for name in changed}
        text = f"changed {', '.join(name.replace('_', ' ') for name in changed)}"
        record(Subject.PROBLEM, locked, text, actor=by, before=before, after=after)
    return tuple(changed)


def make_slug(framework: str, title: str) -> str:
    """A slug that nobody has: the framework and the title's words, numbered where that is taken."""
    base = re.sub(r"-+", "-", slugify(f"{framework} {title}").replace("_", "-"))[:LONGEST_SLUG].strip("-") or "problem"
    taken = set(Problem.objects.filter(slug__startswith=base).values_list("slug", flat=True))
    return next(
        slug for slug in (base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))) if slug not in taken
    )


def _check_may(person: User) -> None:
    if not person.has_role(Role.TRIAGER):
        raise Refused("forbidden", f"this needs the role triager, and you are {person.role}; ask an administrator")
