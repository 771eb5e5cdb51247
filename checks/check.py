"""A check: a claim that must hold, the runs that it needs, and the pure judge that decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isqrt

from checks.material import Material
from checks.spec import RunSpec
from checks.verdict import Status, Verdict


class Role(StrEnum):
    """Which run of a validation: the asked one, or the same rows as one batch without accumulation."""

    RUN = "run"
    MERGED = "merged"


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


def spec_of(role: Role, spec: RunSpec) -> RunSpec:
    """The run spec of a role. The planner merges equal ones.

    The merged run trains one step on the same rows: batch · accumulation rows at once. A run without accumulation is
    compared with its rows split in as many micro-batches as divide them.
    """
    if role is Role.RUN:
        return spec
    if spec.accumulation > 1:
        return replace(spec, batch=spec.batch * spec.accumulation, accumulation=1, steps=1)
    parts = next((n for n in range(2, isqrt(spec.batch) + 1) if spec.batch % n == 0), spec.batch)
    return replace(spec, batch=spec.batch // parts, accumulation=parts, steps=1)


def inconclusive(check: str, sentence: str, **details: object) -> Verdict:
    """Nothing trusted was compared; the sentence says what to change."""
    return Verdict(check, Status.INCONCLUSIVE, sentence, **details)  # type: ignore[arg-type]


def skipped(check: str, reason: str) -> Verdict:
    return Verdict(check, Status.SKIPPED, reason)
