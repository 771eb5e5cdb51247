"""Forking: a case costs what it computes, the imports are paid once."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

POLL_S = 0.02
TIMED_OUT = 124
"""exit code of a child that was ended at its limit, as of timeout(1)"""


def fork(run: Callable[[], int], *, log: Path) -> int:
    """Start `run` in a child with a process group of its own, its output appended to `log`; returns its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        # A fork has lost torch's thread pool, and two threads that load a model at once would both replace it.
        torch.set_num_threads(1)
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        # Whoever captured this process's output by replacing these objects does not have the child's.
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        tempfile.tempdir = None
        code = run()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, *, limit_s: float) -> int:
    """The child's exit code as a shell gives it; at its limit it is ended, with all that it started."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return read_exit(status)
        time.sleep(POLL_S)
    end_group(pid)
    os.waitpid(pid, 0)
    return TIMED_OUT


def read_exit(status: int) -> int:
    """Exit code of a wait status, 128 + n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def end_group(pid: int) -> None:
    """Kill a child and its group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
            return
        except ProcessLookupError:  # it has no group yet, or has gone
            continue
