"""The pool of this machine without a server: locked files, which the kernel lets go of when their holder dies.

devices/<host>/
  guard              held while tickets and devices are looked at
  queue/<time>-<id>  a waiting run's ticket, locked by it; the oldest locked one is served first
  held/<device>      locked by the run that has the device
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workers.devices.pool import Wish, share

POLL_S = 0.2


class NotGranted(RuntimeError):
    """The run was cancelled while it waited."""


class LocalPool:
    """`devices`: names, those of this machine. Processes that are to share them name the same directory."""

    def __init__(self, devices: Sequence[str], *, directory: Path | None = None) -> None:
        self.devices = tuple(devices)
        self.directory = (directory or default_directory()) / re.sub(r"[^\w.-]", "_", socket.gethostname())

    @contextmanager
    def hold(
        self, count: int, *, cancelled: Callable[[], bool], on_wait: Callable[[str], None]
    ) -> Iterator[tuple[str, ...]]:
        """Wait for so many devices, and hold them. Ask for no more than there are.

        Raises:
            NotGranted: cancelled while it waited.
        """
        if count > len(self.devices):
            raise ValueError(f"{count} of {len(self.devices)} devices were asked for")
        for folder in ("queue", "held"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            held = self._wait(count, stack, cancelled, on_wait)
            yield held

    def _wait(
        self, count: int, stack: contextlib.ExitStack, cancelled: Callable[[], bool], on_wait: Callable[[str], None]
    ) -> tuple[str, ...]:
        ticket = self.directory / "queue" / f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}"
        with self._guard():
            file = ticket.open("w")
            stack.callback(file.close)
            stack.callback(ticket.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        while True:
            with self._guard():
                before = self._list_before(ticket)
                held = () if before else self._take(count, stack)
                if held:
                    ticket.unlink()
                    return held
            if cancelled():
                raise NotGranted(f"the run was cancelled while it waited for {count} devices")
            on_wait(f"waits for {count} of {len(self.devices)} devices, {before} before it")
            time.sleep(POLL_S)

    def _list_before(self, ticket: Path) -> int:
        """How many wait before this one; tickets of the dead are thrown away."""
        count = 0
        for other in sorted((self.directory / "queue").iterdir()):
            if other.name >= ticket.name:
                break
            if _is_locked(other):
                count += 1
            else:
                other.unlink(missing_ok=True)
        return count

    def _take(self, count: int, stack: contextlib.ExitStack) -> tuple[str, ...]:
        """Lock so many free devices, or none."""
        files = {name: self.directory / "held" / re.sub(r"[^\w.-]", "_", name) for name in self.devices}
        free = [name for name, file in files.items() if not _is_locked(file)]
        for _, given in share(free, [Wish("", count)]):
            for name in given:
                opened = stack.enter_context(files[name].open("w"))
                fcntl.flock(opened, fcntl.LOCK_EX)
            return given
        return ()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        with (self.directory / "guard").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def default_directory() -> Path:
    """Beside the environments of frameworks, in the XDG data home."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "plumbline" / "devices"


def _is_locked(path: Path) -> bool:
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
