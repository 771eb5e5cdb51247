"""Runs that a person asks for because a finding cannot be decided yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plumbline_web.accounts.models import User
from plumbline_web.validations.domain import Refused, cancel, retry
from plumbline_web.validations.models import Finding, Validation
from plumbline_web.validations.submission import InvalidSubmission

MOST_RUNS = 20
"""Validations that one decision asks for."""


@dataclass
class Asked:
    """Per finding the validation that was asked for, or why none could be."""

    validations: dict[int, Validation] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def ask_again(findings: Iterable[int], *, versions: Mapping[int, int] | None, by: User) -> Asked:
    """Submit the validations of findings again, each once, with fresh captures; what is stale is left out.

    Raises:
        Refused: more than MOST_RUNS validations.
    """
    rows = Finding.objects.filter(pk__in=list(findings)).select_related("validation").order_by("pk")
    fresh = [row for row in rows if versions is None or versions.get(row.pk, row.version) == row.version]
    if len({row.validation_id for row in fresh}) > MOST_RUNS:
        raise Refused("illegal_state", f"more than {MOST_RUNS} validations would be run again; choose fewer findings")
    asked = Asked()
    done: dict[int, Validation | str] = {}
    for row in fresh:
        if row.validation_id not in done:
            done[row.validation_id] = _retry(row.validation, by=by)
        again = done[row.validation_id]
        if isinstance(again, str):
            asked.refused[row.pk] = f"{row.number} cannot be run again: {again}"
        else:
            asked.validations[row.pk] = again
    return asked


def call_off(asked: Asked, *, kept: Iterable[Finding], by: User) -> None:
    """Cancel the runs that no finding waits for, because somebody decided in between."""
    needed = {asked.validations[finding.pk].pk for finding in kept if finding.pk in asked.validations}
    for validation in {each.pk: each for each in asked.validations.values()}.values():
        if validation.pk not in needed:
            cancel(validation, by=by)


def _retry(validation: Validation, *, by: User) -> Validation | str:
    try:
        return retry(validation, by=by)
    except Refused as error:
        return str(error)
    except InvalidSubmission as error:
        return "; ".join(str(sentence) for sentence in error.errors.values())
