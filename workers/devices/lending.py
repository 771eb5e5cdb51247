"""How many devices a run takes, and how it is shown those that it was lent."""

from __future__ import annotations

from dataclasses import replace

from checks.errors import BadRequest
from checks.roles import other_layout
from checks.spec import RunSpec
from workers.devices.listing import VISIBLE
from workers.frameworks.base import Launch


def count_devices(spec: RunSpec) -> int:
    """One a process; a run that is taken up at another layout takes as many as the larger of the two."""
    return max(spec.processes, other_layout(spec).processes) if spec.resharded else spec.processes


def refuse_too_many(spec: RunSpec, *, there: int, where: str) -> None:
    """Raise BadRequest for a run of more processes than there are devices; none at all is a run on the CPU."""
    count = count_devices(spec)
    if 0 < there < count:
        axis = next((name for name in ("dp_size", "tp_size", "ep_size") if getattr(spec, name) > 1), "checks")
        found = f"the run takes {count} devices, and {where} has {there}"
        raise BadRequest(axis, found, "choose smaller degrees, or run it on a CPU")


def show_devices(launch: Launch, devices: tuple[str, ...]) -> Launch:
    """The launch with these devices in sight and no other."""
    return replace(launch, environment={**launch.environment, VISIBLE: ",".join(devices)})
