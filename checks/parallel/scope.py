"""Which checks can judge a run of several processes, and which read one process only."""

from __future__ import annotations

from collections.abc import Sequence

from checks.roles import Role
from checks.spec import POLICY_OBJECTIVES, RunSpec

OVER_RANKS = frozenset(
    {
        *("run.completes", "environment.known_problems", "data.template", "data.mask", "data.coverage"),
        *("convergence.health", "parallel.data", "parallel.replicas", "parallel.gradients"),
        *("checkpoint.reshard", "step.grad_norm"),
    }
)
"""Checks that read every rank, or nothing that differs between ranks."""

UNITED = frozenset({"step.rl_loss", "step.advantages", "step.rl_logprobs", "step.gradients"})
"""Checks that read what all ranks recorded as of one process, where the run trains on completions."""


ALONE = frozenset({"parallel.replicas"})
"""Checks that are decided by the asked run; another one only tells which side of a disagreement is the odd one."""

UNITED_ALONE = "step.gradients"
"""The check that holds what all ranks made together against the reference, where there is no run of one process.

What is recorded is what the optimizer is given: reduced over all ranks, whatever a framework makes of its scalars.
"""


def is_united(spec: RunSpec) -> bool:
    """Whether the ranks' step is put together: what data-parallel ranks make of their scalars differs by framework."""
    return spec.objective in POLICY_OBJECTIVES and spec.dp_size == 1


RESUMED = frozenset({"checkpoint.roundtrip", "checkpoint.resume"})
"""Checks that read so a run that is saved and taken up again by several processes."""
SAVED_AS_DIVIDED = frozenset({"automodel"})
"""frameworks whose runs are saved and taken up again by as many processes, along any axis but DDP's"""


def why_not_over_ranks(name: str, spec: RunSpec, *, alone: bool = False) -> str | None:
    """The reason why a check has nothing to say on a run of several processes, None where it has.

    `alone`: no run of one process is made beside it.
    """
    if spec.processes == 1 or name in OVER_RANKS or (name in UNITED and is_united(spec)):
        return None
    if _is_resumed(name, spec) or (alone and name == UNITED_ALONE):
        return None
    found = f"the run is of {spec.processes} processes and this check reads one"
    if alone:
        return f"{found}; {UNITED_ALONE} holds what they made together against the reference"
    return f"{found}; parallel.gradients holds their step against a run of one process"


def why_not_resumed(roles: Sequence[Role], spec: RunSpec) -> str | None:
    """The reason why a check that resumes the run has nothing to say on a framework that saves nothing."""
    if Role.RESUMED in roles and spec.framework == "plain":
        return "the plain loop saves nothing that could be resumed"
    return None


def why_not_alone(spec: RunSpec) -> str | None:
    """The reason why a parallel check has nothing to say on a run spec: it is of one process."""
    return "the run is of one process" if spec.processes == 1 else None


def _is_resumed(name: str, spec: RunSpec) -> bool:
    divided = spec.sharding == "fsdp2" or spec.tp_size > 1 or spec.pp_size > 1 or spec.ep_size > 1
    return name in RESUMED and spec.framework in SAVED_AS_DIVIDED and divided
