"""Faults to inject on purpose, each modelled on a public problem, to show that a check sees it.

A fault is one standalone file that imports nothing of this tree: the recorder executes it in the framework's process
(`plumbline-capture run --preload FILE`) right after torch is imported and calls its `install()`. Whenever it takes
effect it says so on stderr, so that a fault which never did is not mistaken for one that no check saw.
"""

from __future__ import annotations

from pathlib import Path

from checks.errors import BadRequest
from checks.faults.entries.batches import BATCHES_FAULTS
from checks.faults.entries.checkpoint import CHECKPOINT_FAULTS
from checks.faults.entries.data import DATA_FAULTS
from checks.faults.entries.fault import Fault
from checks.faults.entries.memory import MEMORY_FAULTS
from checks.faults.entries.model import MODEL_FAULTS
from checks.faults.entries.numerics import NUMERICS_FAULTS
from checks.faults.entries.objective import OBJECTIVE_FAULTS
from checks.faults.entries.parallel import PARALLEL_FAULTS
from checks.faults.entries.preference import PREFERENCE_FAULTS
from checks.faults.entries.rewards import REWARD_FAULTS
from checks.faults.entries.whole_runs import WHOLE_RUN_FAULTS
from checks.suggesting import nearest

__all__ = ["FAULTS", "Fault", "fault", "was_in_force"]

FAULTS: tuple[Fault, ...] = (
    *DATA_FAULTS,
    *BATCHES_FAULTS,
    *MODEL_FAULTS,
    *OBJECTIVE_FAULTS,
    *PREFERENCE_FAULTS,
    *REWARD_FAULTS,
    *NUMERICS_FAULTS,
    *CHECKPOINT_FAULTS,
    *PARALLEL_FAULTS,
    *WHOLE_RUN_FAULTS,
    *MEMORY_FAULTS,
)


def fault(slug: str) -> Fault:
    """The fault of that name; BadRequest with the nearest names when there is none."""
    by_slug = {each.slug: each for each in FAULTS}
    if slug in by_slug:
        return by_slug[slug]
    near = nearest(slug, by_slug)
    remedy = f"did you mean {', '.join(near)}" if near else "`plumbline faults` lists them"
    raise BadRequest("inject", f"there is no fault {slug!r}", remedy)


def was_in_force(each: Fault, *, log: Path) -> bool:
    """Whether the run that wrote `log` says that the fault took effect in it."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return any(each.marker in line for line in lines)
