"""Run a command with the recorder in front, and merge what its processes recorded into one manifest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import List, Optional

from plumbline_capture.format import utc_now
from plumbline_capture.manifest import write_manifest
from plumbline_capture.settings import VARIABLE, Settings

GRACE_S = 5.0
"""seconds between a signal that is passed on and the end of a process group that does not heed it"""

_NOT_FOUND = 127  # as a shell has it
_NOT_EXECUTABLE = 126
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(settings: Settings, command: List[str]) -> int:
    """Run a command, write the manifest whatever becomes of it, and return its exit code (128 + signal if killed)."""
    started = utc_now()
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    code = _run_to_end(command, _environment(settings))
    write_manifest(out, settings=settings, command=command, exit_code=code, started=started)
    return 128 - code if code < 0 else code


def _environment(settings: Settings) -> "dict[str, str]":
    environment = dict(os.environ)
    environment[VARIABLE] = settings.to_environment()
    paths = [str(Path(__file__).resolve().parent / "site")]
    if environment.get("PYTHONPATH"):
        paths.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _run_to_end(command: List[str], environment: "dict[str, str]") -> int:
    """Return the command's exit code, negative for a signal.

    It leads a process group of its own, so that a signal to the launcher reaches all of it, torchrun's workers too.
    """
    child: Optional["subprocess.Popen[bytes]"] = None
    passed_on: List[int] = []

    def pass_on(number: int, frame: Optional[FrameType]) -> None:
        passed_on.append(number)
        if child is not None:
            _signal_group(child.pid, number)

    previous = {number: signal.signal(number, pass_on) for number in _FORWARDED}
    try:
        try:
            child = subprocess.Popen(command, env=environment, start_new_session=True)
        except FileNotFoundError:
            sys.stderr.write(f"plumbline-capture: {command[0]}: no such command; check the name and PATH.\n")
            return _NOT_FOUND
        except PermissionError:
            sys.stderr.write(f"plumbline-capture: {command[0]}: not executable; run it through its interpreter.\n")
            return _NOT_EXECUTABLE
        if passed_on:  # it came while the command was being started
            _signal_group(child.pid, passed_on[-1])
        while child.poll() is None:
            try:
                child.wait(timeout=GRACE_S if passed_on else 0.5)
            except subprocess.TimeoutExpired:
                if passed_on:
                    _signal_group(child.pid, signal.SIGKILL)
        if passed_on:
            _signal_group(child.pid, signal.SIGKILL)  # whatever outlives the leader
        return child.returncode
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:  # it has ended already
        return
