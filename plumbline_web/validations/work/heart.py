"""The heartbeat beside a job's work: it keeps the lease, carries the live output, and hears the cancellation."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction
from django.db.utils import InterfaceError, OperationalError

from plumbline_web.jobs.domain import HEARTBEAT_S, LEASE_S, Lease, LeaseLost, beat, write_line

PIECE_CHARACTERS = 8000
"""of output in one row; a flood is kept whole in the log file, and shown live in part"""

MOST_PIECES = 500
"""rows of live output of one attempt"""


class Heart:
    """`cancelled` is what a run polls; it is also true once the lease is lost or the worker is to stop.

    Attributes: `asked`: a person cancelled. `lost`: another has the job. `leaving`: this worker is being stopped.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.asked = self.lost = self.leaving = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._output: list[str] = []
        self._detail: str | None = None
        self._phase: str | None = None
        self._pieces = 0
        self._parent = os.getppid()

    def cancelled(self) -> bool:
        return self.asked or self.lost or self.leaving

    def say(self, phase: str) -> None:
        """Name what the job is at."""
        with self._lock:
            self._phase = phase

    def take_line(self, line: str) -> None:
        """One line of output, shown live."""
        with self._lock:
            self._output.append(line)
            if line.strip():
                self._detail = line.strip()

    def beat_until_ended(self) -> None:
        """The thread's work. A database that does not answer is tried again until the lease must have run out."""
        failing_since = 0.0
        try:
            while not self._ended.wait(HEARTBEAT_S):
                try:
                    self._beat()
                    failing_since = 0.0
                except LeaseLost:
                    self.lost = True
                    return
                except (OperationalError, InterfaceError):
                    connection.close()
                    failing_since += HEARTBEAT_S
                    if failing_since >= LEASE_S:
                        self.lost = True
                        return
        finally:
            connection.close()

    def end(self) -> None:
        self._ended.set()

    def _beat(self) -> None:
        with self._lock:
            output, self._output = self._output, []
            detail, phase = self._detail, self._phase
        # An orphan of a killed worker gives its job back at once instead of finishing it unsupervised.
        self.leaving = self.leaving or os.getppid() != self._parent or stop_file(self._parent).exists()
        with transaction.atomic():
            self.asked = beat(self.lease, detail=detail, phase=phase) or self.asked
            self._write("\n".join(output))

    def _write(self, text: str) -> None:
        while text and self._pieces < MOST_PIECES:
            write_line(self.lease, self._pieces, text[:PIECE_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}"))
            text = text[PIECE_CHARACTERS:]
            self._pieces += 1

    def flush(self) -> None:
        """Write the last output; raises LeaseLost as `beat` does."""
        self._beat()


@contextmanager
def beating(lease: Lease) -> Iterator[Heart]:
    """A heart that beats during the work, and once more at its end."""
    heart = Heart(lease)
    thread = threading.Thread(target=heart.beat_until_ended, name=f"heart of job {lease.job_id}", daemon=True)
    thread.start()
    try:
        yield heart
    finally:
        heart.end()
        thread.join()


def stop_file(worker_pid: int) -> Path:
    """Exists while a worker is being stopped: its pool processes give their jobs back."""
    return Path(settings.DATA) / "workers" / f"{worker_pid}.stopping"
