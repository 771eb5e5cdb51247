"""A check: a claim that must hold, the runs that it needs, and the pure judge that decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checks.material import Material
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Status, Verdict


@dataclass(frozen=True)
class Check:
    """`applies` gives the reason why the check has nothing to say on a run spec, None where it has."""

    name: str
    claim: str
    description: str
    judge: Callable[[Material], Verdict]
    roles: tuple[Role, ...] = (Role.RUN,)
    reference: bool = False
    applies: Callable[[RunSpec], str | None] = lambda spec: None

    @property
    def level(self) -> str:
        return self.name.split(".")[0]


def inconclusive(check: str, sentence: str, **details: object) -> Verdict:
    """Nothing trusted was compared; the sentence says what to change."""
    return Verdict(check, Status.INCONCLUSIVE, sentence, **details)  # type: ignore[arg-type]


def skipped(check: str, reason: str) -> Verdict:
    return Verdict(check, Status.SKIPPED, reason)
