"""Which checks can judge a run of several processes, and which read one process only."""

from __future__ import annotations

from collections.abc import Sequence

from checks.roles import Role
from checks.spec import RunSpec

OVER_RANKS = frozenset(
    {
        *("run.completes", "environment.known_problems", "data.template", "data.mask", "data.coverage"),
        *("convergence.health", "parallel.data", "parallel.replicas", "parallel.gradients"),
        *("checkpoint.reshard", "step.grad_norm"),
    }
)
"""Checks that read every rank, or nothing that differs between ranks."""


def why_not_over_ranks(name: str, spec: RunSpec) -> str | None:
    """The reason why a check has nothing to say on a run of several processes, None where it has."""
    if spec.processes == 1 or name in OVER_RANKS:
        return None
    return (
        f"the run is of {spec.processes} processes and this check reads one; parallel.gradients holds their step "
        "against a run of one process"
    )


def why_not_resumed(roles: Sequence[Role], spec: RunSpec) -> str | None:
    """The reason why a check that resumes the run has nothing to say on a framework that saves nothing."""
    if Role.RESUMED in roles and spec.framework == "plain":
        return "the plain loop saves nothing that could be resumed"
    return None


def why_not_alone(spec: RunSpec) -> str | None:
    """The reason why a parallel check has nothing to say on a run spec: it is of one process."""
    return "the run is of one process" if spec.processes == 1 else None
