"""The audit itself: an inventory against the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checks.catalogue.exposure import Exposure, Standing, assess_all
from checks.catalogue.problem import Problem, ProblemStatus
from workers.audit.inventory import Inventory

_WITHOUT_FIX = {ProblemStatus.FIXED: "not known", ProblemStatus.CLOSED_NOT_FIXED: "closed, not fixed"}
"""what is said of a problem that no release is known to mend; else it is open"""

SILENT_PROBLEM = 1
"""exit code where a release has a silent known problem"""


@dataclass(frozen=True)
class Audit:
    """What is known of the releases of an inventory. `elsewhere`: problems of packages that are not in it."""

    inventory: Inventory
    affecting: tuple[Standing, ...]
    """silent ones first, then by slug"""
    not_affecting: tuple[Standing, ...]
    unknown: tuple[Standing, ...]
    elsewhere: int

    @property
    def silent(self) -> tuple[Standing, ...]:
        return tuple(standing for standing in self.affecting if standing.problem.silent)

    @property
    def exit_code(self) -> int:
        return SILENT_PROBLEM if self.silent else 0


def audit(inventory: Inventory, problems: Sequence[Problem]) -> Audit:
    """Sort the catalogue's problems by what is known of them in the inventory."""
    standings = assess_all(problems, inventory.packages)

    def select(exposure: Exposure) -> tuple[Standing, ...]:
        found = (standing for standing in standings if standing.exposure is exposure)
        return tuple(sorted(found, key=lambda standing: (not standing.problem.silent, standing.problem.slug)))

    return Audit(
        inventory=inventory,
        affecting=select(Exposure.AFFECTED),
        not_affecting=select(Exposure.NOT_AFFECTED),
        unknown=select(Exposure.UNKNOWN),
        elsewhere=len(problems) - len(standings),
    )


def describe_fix(standing: Standing) -> str:
    """The first release without the problem, or why none is named."""
    if standing.fixed_in is not None:
        return standing.fixed_in
    return _WITHOUT_FIX.get(standing.problem.status, "open upstream")
