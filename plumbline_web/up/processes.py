"""Starting a service so that it does not outlive this process, and ending it with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from plumbline_web.up.accounts import Account

MARK = "PLUMBLINE_UP"
"""Environment variable of every service with its data directory: how the next `up` finds what a dead one left."""

END_SIGNAL = "PLUMBLINE_UP_END"
"""Environment variable with the number of the signal at which a service drops everything and ends cleanly."""

PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h"""

POLL_S = 0.05
KILL_WAIT_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def spawn(
    command: Iterable[str],
    *,
    environment: dict[str, str],
    log: Path | None,
    end_signal: signal.Signals,
    account: Account | None = None,
    cwd: Path | None = None,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that a terminal's ctrl-C reaches this process alone.

    `log`: file for its output; None leaves it on this process's. On Linux the kernel sends it `end_signal` when this
    process ends, also by SIGKILL. Call it from the main thread: to the kernel, a parent is a thread.
    """
    with contextlib.ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            list(command),
            env={**environment, END_SIGNAL: str(int(end_signal))},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            # runs last in the child, after the change of user, which would clear it
            preexec_fn=_die_with(os.getpid(), end_signal) if sys.platform == "linux" else None,
        )


def _die_with(parent: int, number: signal.Signals) -> Callable[[], None]:
    def ask() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:
            os._exit(1)  # it had gone before the kernel was asked

    return ask


def list_descendants(pid: int) -> set[psutil.Process]:
    """Everything that a process has started and that has not been handed to init yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def list_marked(mark: str) -> set[psutil.Process]:
    """Living processes of this machine whose environment names this data directory, but for this one."""
    marked = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark and is_alive(process):
                marked.add(process)
    return marked


def end_marked(mark: str, *, grace_s: float) -> int:
    """End what a killed `up` left, framework runs of its workers too; how many processes there were.

    Those that lead a session are services, and end what they started; only the rest of a dead service is asked itself.
    """
    found = list_marked(mark)
    started = {process for each in found for process in list_descendants(each.pid)}
    for process in found - started:
        send({process}, _read_end_signal(process))
    everything = found | started
    end = time.monotonic() + grace_s
    while any(is_alive(process) for process in everything) and time.monotonic() < end:
        time.sleep(POLL_S)
    kill(everything | list_marked(mark))
    return len(everything)


def _read_end_signal(process: psutil.Process) -> signal.Signals:
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        return signal.Signals(int(process.environ().get(END_SIGNAL, "")))
    return signal.SIGTERM


def kill(processes: Iterable[psutil.Process]) -> None:
    """End processes that were asked before, and wait until they are gone."""
    processes = set(processes)
    send(processes, signal.SIGKILL)
    end = time.monotonic() + KILL_WAIT_S
    while any(is_alive(process) for process in processes) and time.monotonic() < end:
        time.sleep(POLL_S)


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def is_alive(process: psutil.Process) -> bool:
    """A zombie is not alive; nor is another process that has got the number since."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    return False
