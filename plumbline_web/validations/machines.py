"""Who has which device of which machine, and who waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Prefetch

from plumbline_web.jobs.devices import valid_wishes
from plumbline_web.jobs.models import Device, DeviceWish
from plumbline_web.validations.models import Validation


@dataclass(frozen=True)
class Lent:
    """One device of a machine: `wish` is its holder's, None where it is free."""

    device: str
    wish: DeviceWish | None


@dataclass(frozen=True)
class Machine:
    """One machine with devices."""

    host: str
    devices: tuple[Lent, ...]
    waiting: tuple[DeviceWish, ...]
    """in the order in which they are met"""

    @property
    def free(self) -> int:
        return sum(lent.wish is None for lent in self.devices)


def read_machines() -> tuple[Machine, ...]:
    """Every machine that has named devices, or whose devices are asked for; three queries."""
    devices: dict[str, list[str]] = {}
    for device in Device.objects.order_by("host", "place", "pk"):
        devices.setdefault(device.host, []).append(device.name)
    numbers = Validation.objects.only("pk", "state").order_by("pk")
    wishes: dict[str, list[DeviceWish]] = {}
    found = valid_wishes().select_related("job__run__framework", "job__run__model").order_by("pk")
    for wish in found.prefetch_related(Prefetch("job__run__validations", queryset=numbers)):
        wishes.setdefault(wish.host, []).append(wish)
    hosts = sorted({*devices, *wishes})
    return tuple(_describe(host, devices.get(host, []), wishes.get(host, [])) for host in hosts)


def _describe(host: str, names: Sequence[str], wishes: Sequence[DeviceWish]) -> Machine:
    held = {name: wish for wish in wishes if wish.granted_at is not None for name in wish.devices}
    gone = [name for name in held if name not in names]  # lent, and no longer named
    return Machine(
        host=host,
        devices=tuple(Lent(name, held.get(name)) for name in (*names, *gone)),
        waiting=tuple(wish for wish in wishes if wish.granted_at is None),
    )
