"""The GPUs of the machines, lent to jobs: all that one asks for or none, in the order of asking.

A grant is valid while the lease of its job is: the token that fences a job's writes fences its devices too. A worker
that dies gives them back when the sweeper has ended what it left and put its job back, and no sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, transaction
from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from plumbline_web.jobs.domain import Lease, LeaseLost
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Device, DeviceWish, Job
from workers.devices.pool import Wish, share

DEVICE_LOCK = 0x64657669
"""First key of the advisory locks of machines; the second is the machine's."""

UNSEEN_S = 7 * 86400.0
"""A machine whose workers have named none for so long counts for nothing when a run is asked for."""


class TooFewDevices(RuntimeError):
    """More were asked for than the machine has; `str()` is a sentence for the job's person."""


@dataclass(frozen=True)
class Waiting:
    """A wish that is not met yet."""

    count: int
    there: int
    """devices of the machine"""
    before: int
    """wishes that are met first"""

    def describe(self) -> str:
        others = f", {self.before} before it" if self.before else ""
        return f"waits for {self.count} of {self.there} devices{others}"


def register_devices(host: str, names: Sequence[str]) -> None:
    """State what a machine has: the whole of it. What is lent stays lent, also where it is named no more."""
    with transaction.atomic():
        _lock(host)
        Device.objects.filter(host=host).exclude(name__in=names).delete()
        _write(host, names)


def add_devices(host: str, names: Sequence[str]) -> None:
    """State what one worker of a machine sees; others may see other ones."""
    with transaction.atomic():
        _lock(host)
        _write(host, names)


def ask(lease: Lease, *, host: str, count: int) -> DeviceWish:
    """Queue up for devices of a machine; the wish that the lease has already, where it asked before.

    Raises:
        TooFewDevices: the machine will never have so many.
        LeaseLost: the job is another's by now.
    """
    with transaction.atomic():
        _lock(host)
        _refuse_too_many(host, count)
        if not _is_valid(lease):
            raise LeaseLost(f"job {lease.job_id}: the lease {lease.token} is no longer valid")
        wish, _ = DeviceWish.objects.get_or_create(
            job_id=lease.job_id, token=lease.token, defaults={"host": host, "count": count}
        )
    return wish


def look(wish: DeviceWish) -> tuple[str, ...] | Waiting:
    """The devices of a wish once it is met, else what it waits for.

    Raises:
        TooFewDevices: the machine has become smaller meanwhile.
        LeaseLost: the wish is gone: its job is another's by now.
    """
    with transaction.atomic():
        _lock(wish.host)
        _grant(wish.host)
        found = DeviceWish.objects.filter(pk=wish.pk).first()
        if found is None:
            raise LeaseLost(f"job {wish.job_id}: the lease {wish.token} is no longer valid")
        if found.granted_at is not None:
            return tuple(found.devices)
        there = _refuse_too_many(wish.host, wish.count)
        before = DeviceWish.objects.filter(host=wish.host, granted_at__isnull=True, pk__lt=wish.pk).count()
        return Waiting(wish.count, there, before)


def give_back(wish: DeviceWish) -> None:
    """Let go of the devices, or of the place in the queue."""
    DeviceWish.objects.filter(pk=wish.pk, token=wish.token).delete()


def valid_wishes() -> QuerySet[DeviceWish]:
    """Those of jobs that run, under the lease that asked."""
    return DeviceWish.objects.filter(job__state=JobState.RUNNING, job__token=F("token"))


def most_devices() -> int:
    """How many the largest known machine has; 0 where none has any."""
    recent = Device.objects.filter(seen_at__gt=Now() - timedelta(seconds=UNSEEN_S))
    largest = recent.values("host").annotate(count=Count("pk")).order_by("-count").first()
    return 0 if largest is None else int(largest["count"])


def _write(host: str, names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        Device.objects.update_or_create(host=host, name=name, defaults={"place": place, "seen_at": timezone.now()})


def _grant(host: str) -> None:
    """Give what is free to those who asked first; wishes of leases that are over are gone before."""
    wishes = DeviceWish.objects.filter(host=host)
    wishes.exclude(pk__in=valid_wishes().filter(host=host).values("pk")).delete()
    granted = wishes.filter(granted_at__isnull=False).values_list("devices", flat=True)
    held = {name for devices in granted for name in devices}
    free = [name for name in _names(host) if name not in held]
    queue = wishes.filter(granted_at__isnull=True).order_by("pk")
    waiting = [Wish(wish.pk, wish.count) for wish in queue]
    for pk, given in share(free, waiting):
        DeviceWish.objects.filter(pk=pk).update(devices=list(given), granted_at=Now())


def _refuse_too_many(host: str, count: int) -> int:
    there = len(_names(host))
    if count > there:
        raise TooFewDevices(
            f"the run takes {count} devices, and {host} has {there}; choose smaller degrees, or a machine with more"
        )
    return there


def _names(host: str) -> list[str]:
    return list(Device.objects.filter(host=host).order_by("place", "pk").values_list("name", flat=True))


def _is_valid(lease: Lease) -> bool:
    return Job.objects.filter(Q(pk=lease.job_id, token=lease.token), state=JobState.RUNNING).exists()


def _lock(host: str) -> None:
    """One at a time a machine."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [DEVICE_LOCK, host])
