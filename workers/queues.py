"""The queues, and how long a message may stay unacknowledged."""

from __future__ import annotations

CPU = "cpu"
GPU = "gpu"
CONTROL = "control"
"""Short work that must not wait behind a framework run: dispatch, the sweeper, schedules."""

QUEUES = (CONTROL, CPU, GPU)

LONGEST_RUN_S = 24 * 3600.0
"""The most that a run may ask for as its time limit."""

VISIBILITY_TIMEOUT_S = 30 * 3600
"""Redis hands an unacknowledged message out again after it; it exceeds the longest run, so that nothing runs twice
because it is long. A run whose worker died is found by its lease instead, in seconds.
"""

SWEEP_EVERY_S = 3.0
"""How often open leases are looked at."""


def host_queue(host: str) -> str:
    """The queue of one machine: ending the processes that a dead worker left can be done only there."""
    return f"host.{host}"
