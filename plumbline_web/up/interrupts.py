"""ctrl-C, TERM and a closed terminal ask for an orderly end; a second one, for a quick one."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupts:
    """Counts the requests to end, from the moment it is made."""

    def __init__(self) -> None:
        self._count = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._count_one)

    def _count_one(self, number: int, frame: FrameType | None) -> None:
        self._count += 1

    def stop_asked(self) -> bool:
        return self._count > 0

    def in_a_hurry(self) -> bool:
        return self._count > 1
