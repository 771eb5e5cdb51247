"""Starts services, restarts the one that dies, gives up on one that keeps dying, and ends them all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from plumbline_web.up.logs import read_last_lines, rotate
from plumbline_web.up.processes import MARK, is_alive, kill, list_descendants, spawn
from plumbline_web.up.service import Service

TICK_S = 0.1
READY_S = 120.0
"""A cold disk and a busy machine: importing everything takes most of a minute there."""

QUICK_DEATH_S = 30.0
MOST_QUICK_DEATHS = 5
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LINES_SHOWN = 12
ROTATE_EVERY_S = 30.0


class ServiceFailed(RuntimeError):
    """A service that does not become ready, or keeps dying; says which, and where its output is."""


class StopAsked(Exception):
    """Someone asked for the end while something was being waited for."""


@dataclass
class _Child:
    service: Service
    log: Path | None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    log_start: int = 0
    """bytes of the log that were there before"""
    ready: bool = False
    quick_deaths: int = 0
    restart_at: float | None = None
    asked: set[psutil.Process] = field(default_factory=set)


class Supervisor:
    """The children of this process. Everything is called from the main thread."""

    def __init__(
        self,
        *,
        mark: str,
        logs: Path | None,
        say: Callable[[str, str], None],
        stop_asked: Callable[[], bool] = lambda: False,
        in_a_hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        """`mark`: the data directory. `logs`: folder for outputs; None leaves them on this process's own.

        `say(name, text)` shows one line. `in_a_hurry`: someone asked twice, and nothing is waited for any more.
        """
        self._mark = mark
        self._logs = logs
        self._say = say
        self._stop_asked = stop_asked
        self._in_a_hurry = in_a_hurry
        self._children: list[_Child] = []
        self._rotate_at = 0.0

    def start(self, *services: Service) -> None:
        """Start services side by side, and return once all are ready.

        Raises:
            ServiceFailed: one is not ready in time or keeps dying.
            StopAsked: meanwhile.
        """
        children = [_Child(service, self._log_of(service)) for service in services]
        for child in children:
            self._children.append(child)
            self._spawn(child)
        end = time.monotonic() + READY_S
        while not all(child.ready for child in children):
            self.tick()
            if time.monotonic() > end:
                late = next(child for child in children if not child.ready)
                raise self._failure(late, f"is not ready after {READY_S:g} s")

    def tick(self) -> None:
        """Look after every child once, and wait a moment.

        Raises:
            ServiceFailed, StopAsked: as `start`.
        """
        for child in self._children:
            self._look_after(child)
        if time.monotonic() >= self._rotate_at:
            self._rotate_at = time.monotonic() + ROTATE_EVERY_S
            for child in self._children:
                if child.log is not None:
                    rotate(child.log)
        if self._stop_asked():
            raise StopAsked
        time.sleep(TICK_S)

    def _look_after(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if child.restart_at is not None and now >= child.restart_at:
                self._spawn(child)
        elif child.process.poll() is not None:
            self._bury(child, lived_s=now - child.started)
        elif not child.ready and child.service.is_ready(child.process.pid):
            child.ready = True
            self._say(child.service.name, f"ready in {now - child.started:.1f} s, {child.service.detail}")

    def _spawn(self, child: _Child) -> None:
        service = child.service
        child.started, child.restart_at, child.ready = time.monotonic(), None, False
        child.log_start = 0 if child.log is None or not child.log.exists() else child.log.stat().st_size
        child.process = spawn(
            service.command,
            environment={**os.environ, **service.environment, MARK: self._mark},
            log=child.log,
            end_signal=service.end_signal,
            account=service.account,
            cwd=service.cwd,
            pass_fds=service.pass_fds,
        )

    def _bury(self, child: _Child, *, lived_s: float) -> None:
        assert child.process is not None
        ending = _describe_ending(child.process.returncode)
        child.process = None
        child.quick_deaths = child.quick_deaths + 1 if lived_s < QUICK_DEATH_S else 1
        if child.quick_deaths >= MOST_QUICK_DEATHS:
            raise self._failure(child, f"{ending}, {child.quick_deaths} times within {QUICK_DEATH_S:g} s of its start")
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (child.quick_deaths - 1))
        self._say(child.service.name, f"{ending} after {lived_s:.1f} s; starts again in {delay:.1f} s")
        self._show_last_lines(child)
        child.restart_at = time.monotonic() + delay

    def _failure(self, child: _Child, what: str) -> ServiceFailed:
        self._show_last_lines(child)
        where = "" if child.log is None else f"; its output is in {child.log}"
        return ServiceFailed(f"{child.service.name}: {what}{where}.")

    def _show_last_lines(self, child: _Child) -> None:
        if child.log is not None:
            for line in read_last_lines(child.log, since=child.log_start, count=LINES_SHOWN):
                self._say(child.service.name, f"| {line}")

    def _log_of(self, service: Service) -> Path | None:
        return None if self._logs is None else self._logs / f"{service.name}.log"

    def stop(self, *names: str) -> None:
        """End the named children together: asked to finish, then to end, then killed.

        What they started ends with them, also what has left their process group.
        """
        self._stop([child for child in self._children if child.service.name in names])

    def stop_but(self, *names: str) -> None:
        """End all but the named children together, as `stop` does."""
        self._stop([child for child in self._children if child.service.name not in names])

    def _stop(self, children: Sequence[_Child]) -> None:
        self._children = [child for child in self._children if child not in children]
        running = [child for child in children if child.process is not None]
        for child in running:
            self._ask(child, child.service.stop_signal)
        self._wait(running, seconds=[child.service.stop_s for child in running])
        left = [child for child in running if not _has_ended(child)]
        for child in left:
            self._ask(child, child.service.end_signal)
        self._wait(left, seconds=[child.service.end_s for child in left])
        for child in running:
            self._kill(child)
            self._say(child.service.name, "stopped")

    def _ask(self, child: _Child, number: int) -> None:
        assert child.process is not None
        child.asked |= list_descendants(child.process.pid)
        child.process.send_signal(number)

    def _wait(self, children: Sequence[_Child], *, seconds: Sequence[float]) -> None:
        begun = time.monotonic()
        while any(
            not _has_ended(child) and time.monotonic() - begun < limit
            for child, limit in zip(children, seconds, strict=True)
        ):
            if self._in_a_hurry():
                return
            time.sleep(TICK_S / 4)

    def _kill(self, child: _Child) -> None:
        assert child.process is not None
        left = {process for process in child.asked | list_descendants(child.process.pid) if is_alive(process)}
        if child.process.poll() is None:
            self._say(child.service.name, "did not end when asked; it is killed")
            child.process.kill()
        kill(left)
        child.process.wait()


def _has_ended(child: _Child) -> bool:
    return child.process is None or child.process.poll() is not None


def _describe_ending(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
