"""Commands of the installation, run as anyone would run them, for the tests that start whole stacks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent

START_LIMIT_S = 150.0
"""A start takes 10 s; on a machine where every core is busy with other tests, several times that."""

OURS = ("DATABASE_URL", "REDIS_URL", "PLUMBLINE_DATA", "PLUMBLINE_SECRET_KEY", "PLUMBLINE_ORIGIN", "PLUMBLINE_HOSTS")


def bare_environment(**extra: str) -> dict[str, str]:
    """This process's, without the services of the test run."""
    return {name: value for name, value in os.environ.items() if name not in OURS} | extra


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@dataclass(frozen=True)
class Command:
    """A running command with its output in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_for(self, text: str) -> str:
        """The first line that holds a text."""
        wait_until(lambda: self.process.poll() is not None or text in self.log.read_text(), what=f"{text!r}")
        found = [line for line in self.lines if text in line]
        assert found, self.log.read_text()
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=START_LIMIT_S)


def start_command(
    command: tuple[str, ...], *, log: Path, environment: Mapping[str, str], cwd: Path | None = None
) -> Command:
    """Start one of the programs that the installation brings."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return Command(process, log)


def run_command(command: tuple[str, ...], *, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one of them to its end."""
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
    )


def wait_until(holds: Callable[[], bool], *, what: str, every_s: float = 0.1) -> None:
    end = time.monotonic() + START_LIMIT_S
    while not holds():
        assert time.monotonic() < end, f"waited {START_LIMIT_S:g} s for {what}"
        time.sleep(every_s)
