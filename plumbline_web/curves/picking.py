"""Which validations are compared, and which could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import AnonymousUser

from plumbline_web.accounts.models import User
from plumbline_web.curves.selection import Selection
from plumbline_web.validations.enums import State
from plumbline_web.validations.models import Validation

RECENT = 20
"""Validations that are offered; any other is given by its number."""


@dataclass(frozen=True)
class Found:
    """The selected validations in the order of the selection, and a sentence on each that there is not."""

    validations: tuple[Validation, ...]
    errors: tuple[str, ...]


def read_validations(selection: Selection, *, user: User | AnonymousUser) -> Found:
    rows = Validation.objects.visible_to(user).with_names().in_bulk(selection.validations)
    missing = tuple(
        f"v: there is no V-{pk}; choose one from the list" for pk in selection.validations if pk not in rows
    )
    return Found(tuple(rows[pk] for pk in selection.validations if pk in rows), missing)


def list_choices(selection: Selection, *, user: User | AnonymousUser) -> Sequence[Validation]:
    """The latest validations that have ended and are not selected."""
    rows = Validation.objects.visible_to(user).with_names().filter(state=State.DONE)
    return list(rows.exclude(pk__in=selection.validations).order_by("-created_at", "-id")[:RECENT])
