"""All checks, by name, in the order in which they are read."""

from __future__ import annotations

from difflib import get_close_matches

from checks.architecture import (
    model_definition,
    step_accumulation,
    step_denominator,
    step_gradients,
    step_loss,
    step_settings,
    step_update,
)
from checks.check import Check
from checks.errors import BadRequest
from checks.lifecycle import data_packing, run_completes

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        run_completes.CHECK,
        step_settings.CHECK,
        step_loss.CHECK,
        step_denominator.CHECK,
        step_gradients.CHECK,
        step_update.CHECK,
        step_accumulation.CHECK,
        data_packing.CHECK,
        model_definition.CHECK,
    )
}


def find_checks(names: tuple[str, ...] | None) -> tuple[Check, ...]:
    """The named checks in reading order; all of them for None.

    Raises:
        BadRequest: a name that no check has, with the nearest ones.
    """
    if names is None:
        return tuple(CHECKS.values())
    for name in names:
        if name not in CHECKS:
            near = get_close_matches(name, CHECKS, n=3, cutoff=0.4) or list(CHECKS)
            raise BadRequest("checks", f"there is no check {name!r}", f"did you mean {', '.join(near)}")
    return tuple(check for check in CHECKS.values() if check.name in names)
