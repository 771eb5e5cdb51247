"""Run a command with the recorder in front, and merge what its processes recorded into one manifest."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Callable, List, Optional, Tuple

from plumbline_capture.format import utc_now
from plumbline_capture.manifest import write_manifest
from plumbline_capture.settings import VARIABLE, Settings

GRACE_S = 5.0
"""seconds between a signal that is passed on and the end of a process group that does not heed it"""

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NOT_FOUND = 127  # as a shell has it
_NOT_EXECUTABLE = 126
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(settings: Settings, command: List[str]) -> int:
    """Run a command, write the manifest whatever becomes of it, and return its exit code (128 + signal if killed)."""
    started = utc_now()
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    code, stopped = _run_to_end(command, _environment(settings))
    if settings.checkpoints and not stopped:
        _run_to_end([sys.executable, "-m", "plumbline_capture.checkpoint", settings.to_environment()], dict(os.environ))
    if settings.export is not None and not stopped:
        _run_to_end([sys.executable, "-m", "plumbline_capture.export", settings.to_environment()], dict(os.environ))
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


def _run_to_end(command: List[str], environment: "dict[str, str]") -> Tuple[int, bool]:
    """Return the command's exit code, negative for a signal, and whether this process was told to stop it.

    It leads a process group of its own, so that a signal to the launcher reaches all of it, torchrun's workers too.
    """
    child: Optional["subprocess.Popen[bytes]"] = None
    passed_on: List[Tuple[int, float]] = []

    def pass_on(number: int, frame: Optional[FrameType]) -> None:
        passed_on.append((number, time.monotonic()))
        if child is not None:
            _signal_group(child.pid, number)

    previous = {number: signal.signal(number, pass_on) for number in _FORWARDED}
    try:
        try:
            child = subprocess.Popen(
                command, env=environment, start_new_session=True, preexec_fn=_end_with_parent(os.getpid())
            )
        except FileNotFoundError:
            sys.stderr.write(f"plumbline-capture: {command[0]}: no such command; check the name and PATH.\n")
            return _NOT_FOUND, False
        except PermissionError:
            sys.stderr.write(f"plumbline-capture: {command[0]}: not executable; run it through its interpreter.\n")
            return _NOT_EXECUTABLE, False
        if passed_on:  # it came while the command was being started
            _signal_group(child.pid, passed_on[-1][0])
        while child.poll() is None or (passed_on and _signal_group(child.pid, 0)):
            if passed_on and time.monotonic() - passed_on[0][1] > GRACE_S:
                _signal_group(child.pid, signal.SIGKILL)
                child.wait()
                break
            if child.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_POLL_S)
            else:
                time.sleep(_POLL_S)
        return int(child.returncode), bool(passed_on)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _signal_group(leader: int, number: int) -> bool:
    """Signal a process group (0: only ask) and return whether any of it is left."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:  # it has ended already
        return False
    return True


def _end_with_parent(launcher: int) -> Optional[Callable[[], None]]:
    """Return what the child is to run first so that it is terminated when the launcher is killed; Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it was killed in between
            os._exit(128 + signal.SIGTERM)

    return ask_kernel
