"""The worker's side of computing: a zygote kept ready, an order handed to it, the child watched to its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from workers.endings import Ending
from workers.last_error import read_last_error
from workers.runner import POLL_S, ProcessEnd
from workers.sandbox import scrub_environment
from workers.serving_variables import serving_variables

START_LIMIT_S = 120.0
PYTHON = sys.executable
"""has the checks installed; a worker's own"""


class ZygoteDied(RuntimeError):
    """The parent of the computing processes is gone; the next order starts another."""


class Computer:
    """One zygote, started with the first order. For one order at a time."""

    def __init__(self) -> None:
        self._zygote: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def run(
        self,
        kind: str,
        *,
        order: Path,
        answer: Path,
        log: Path,
        scratch: Path,
        time_limit_s: float,
        on_line: Callable[[str], None],
        cancelled: Callable[[], bool],
        on_start: Callable[[int], None],
    ) -> ProcessEnd:
        """Compute one order; its output goes to `log` and, line by line, to `on_line`.

        Raises ZygoteDied.
        """
        zygote = self._start(scratch)
        log.touch()
        asked = {
            "kind": kind,
            "order": str(order),
            "answer": str(answer),
            "log": str(log),
            "environment": _scratch_of(scratch),
        }
        assert zygote.stdin is not None
        zygote.stdin.write(json.dumps(asked).encode() + b"\n")
        zygote.stdin.flush()
        child = int(self._read(time.monotonic() + START_LIMIT_S))
        started = time.monotonic()
        try:
            on_start(child)
            status, stopped = self._watch(child, log, started + time_limit_s, on_line, cancelled)
        except BaseException:
            self.close()  # with it the child ends
            raise
        last_error = read_last_error(log) if status else None
        return ProcessEnd(
            exit_code=status,
            signal=status - 128 if status > 128 else None,
            ending=stopped or ("completed" if status == 0 else "failed"),
            elapsed_s=time.monotonic() - started,
            peak_memory_bytes=0,
            last_error=last_error,
        )

    def close(self) -> None:
        """End the zygote and what it computes."""
        if self._zygote is not None:
            assert self._zygote.stdin is not None
            self._zygote.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._zygote.wait(timeout=5)
            self._zygote.kill()
            self._zygote.wait()
            self._zygote = None

    def _start(self, scratch: Path) -> subprocess.Popen[bytes]:
        if self._zygote is not None and self._zygote.poll() is None:
            return self._zygote
        self._buffer = b""
        self._zygote = subprocess.Popen(
            [PYTHON, "-m", "workers.jobs.zygote"],
            cwd="/",
            env=scrub_environment(scratch=scratch, extra=serving_variables(os.environ)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        ready = self._read(time.monotonic() + START_LIMIT_S)
        assert ready == "ready", ready
        return self._zygote

    def _watch(
        self,
        child: int,
        log: Path,
        deadline: float,
        on_line: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> tuple[int, Ending | None]:
        stopped: Ending | None = None
        with log.open(errors="replace") as output:
            rest = ""
            while True:
                status = self._poll(POLL_S)
                *lines, rest = (rest + output.read()).split("\n")
                for line in lines:
                    on_line(line)
                if status is not None:
                    return int(status), stopped
                if stopped is None:
                    stopped = "cancelled" if cancelled() else "timed_out" if time.monotonic() > deadline else None
                    if stopped is not None:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(child, signal.SIGKILL)

    def _read(self, deadline: float) -> str:
        while time.monotonic() < deadline:
            line = self._poll(POLL_S)
            if line is not None:
                return line
        self.close()
        raise ZygoteDied(f"the parent of the computing processes did not answer within {START_LIMIT_S:g} s")

    def _poll(self, seconds: float) -> str | None:
        """One line of the zygote, None where there is none yet."""
        assert self._zygote is not None
        assert self._zygote.stdout is not None
        descriptor = self._zygote.stdout.fileno()
        if b"\n" not in self._buffer and select.select([descriptor], [], [], seconds)[0]:
            chunk = os.read(descriptor, 1 << 12)
            if not chunk:
                self.close()
                raise ZygoteDied("the parent of the computing processes ended; it may have been killed for memory")
            self._buffer += chunk
        if b"\n" not in self._buffer:
            return None
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()


def _scratch_of(scratch: Path) -> Mapping[str, str]:
    """What of the environment is a job's own."""
    return {
        name: value
        for name, value in scrub_environment(scratch=scratch, extra={}).items()
        if name in ("TMPDIR", "HF_HOME")
    }
