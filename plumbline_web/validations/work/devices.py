"""A job's devices: asked for on this machine, waited for, given back whatever happens."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError

from checks.spec import RunSpec
from plumbline_web.jobs.devices import Waiting, add_devices, ask, give_back, look, register_devices
from plumbline_web.jobs.domain import Lease
from plumbline_web.validations.work.heart import Heart
from workers.devices.lending import count_devices
from workers.devices.listing import list_devices, names_all

log = logging.getLogger(__name__)

POLL_S = 0.5


def tell_devices(host: str, names: Sequence[str]) -> None:
    """Name this machine's devices: all of them, or where this worker is pinned to some, those."""
    (register_devices if names_all() else add_devices)(host, names)


@contextmanager
def held_devices(lease: Lease, spec: RunSpec, heart: Heart, *, host: str) -> Iterator[tuple[str, ...]]:
    """The devices of a run; none where this worker has none in sight, or where it was cancelled while it waited.

    Raises:
        TooFewDevices: the run takes more than this machine has.
    """
    names = list_devices()
    if not names:
        yield ()
        return
    tell_devices(host, names)
    wish = ask(lease, host=host, count=count_devices(spec))
    try:
        while isinstance(found := look(wish), Waiting) and not heart.cancelled():
            heart.say(found.describe())
            time.sleep(POLL_S)
        yield () if isinstance(found, Waiting) else found
    finally:
        try:
            give_back(wish)
        except (OperationalError, InterfaceError) as error:
            log.warning("job %s: its devices go back when its lease ends (%s)", lease.job_id, error)
