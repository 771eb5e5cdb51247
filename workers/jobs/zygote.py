"""The computing processes' parent: it has torch and the checks loaded, and forks one process an order.

Loading takes nine seconds, three times as long as judging a tiny model; a fork takes none. The zygote itself computes
nothing and starts no thread, so that a fork of it is as good as a new process. It reads one JSON order a line, answers
with the child's pid and then with its exit status, and ends, with the child, when its standard input closes: then the
worker has died.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import traceback
from importlib import import_module
from typing import Any

from workers.garbage import importing

with importing():
    import workers.jobs.compute as computing

POLL_S = 0.05

PRELOADED = ("checks.registry", "transformers.models.qwen3.modeling_qwen3", "transformers.models.auto.modeling_auto")
"""Beside `compute` itself; one family's modeling module draws in what all of them share."""


def main() -> int:
    """Serve orders until standard input closes."""
    with importing():
        for name in PRELOADED:
            import_module(name)
    _answer("ready")
    buffer = b""
    while True:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return 0
        buffer += chunk
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            _serve(json.loads(line))


def _serve(order: dict[str, Any]) -> None:
    child = os.fork()
    if child == 0:
        _become(order)
    # On both sides of the fork: whoever learns the pid may end its group at once.
    os.setpgid(child, child)
    _answer(str(child))
    _answer(str(_wait(child)))


def _wait(child: int) -> int:
    """The child's exit status as a shell gives it; ends both when the worker has gone."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        ready, _, _ = select.select([0], [], [], POLL_S)
        if ready and not os.read(0, 1):
            os.killpg(child, signal.SIGKILL)
            os._exit(1)


def _become(order: dict[str, Any]) -> None:
    """The child: a process group of its own, the log as its output, one order, and out."""
    os.setpgid(0, 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["environment"])
    tempfile.tempdir = None
    code = 1
    try:
        code = computing.main([order["kind"], order["order"], order["answer"]])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _answer(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
