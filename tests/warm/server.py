"""Import the frameworks once, then fork a process for each request: `server.py ADDRESS OWNER_PID`.

A fork does what the interpreter does at its start: standard streams, environment, directory, path, `sitecustomize`; and
then runs the script or module. It is ended when its client is gone; all end when the owner is.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

PRELOADED = (
    "numpy",
    "torch.distributed.run",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.trainer",
    "transformers.data.data_collator",
    "accelerate",
    "datasets",
    "peft",
    "trl.trainer.sft_trainer",
    *(
        f"transformers.models.{family}.modeling_{family}"
        for family in ("qwen3", "qwen3_moe", "llama", "gemma3", "deepseek_v3", "gpt_oss")
    ),
)


def main(address: str, owner: int) -> None:
    """Serve until the owner ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a collection in a fork copies every page of this process
    aside = f"{address}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(aside)
    listener.listen(64)
    try:
        watched = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(watched, selectors.EVENT_READ)
    os.rename(aside, address)
    clients: dict[int, tuple[socket.socket, int, int]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                pid = _fork(connection, listener)
                handle = os.pidfd_open(pid)
                selector.register(handle, selectors.EVENT_READ, data=pid)
                selector.register(connection, selectors.EVENT_READ, data=pid)
                clients[pid] = (connection, handle, pid)
            elif key.fd == watched:
                for pid in clients:
                    _end(pid)
                Path(address).unlink(missing_ok=True)
                return
            elif key.data in clients:
                connection, handle, pid = clients[key.data]
                if key.fileobj is connection:  # nothing is sent after the request: the client is gone
                    _end(pid)
                    selector.unregister(connection)
                    continue
                _, status = os.waitpid(pid, 0)
                _answer(connection, str(os.waitstatus_to_exitcode(status)))
                if connection in selector.get_map():
                    selector.unregister(connection)
                selector.unregister(handle)
                connection.close()
                os.close(handle)
                del clients[pid]


def _fork(connection: socket.socket, listener: socket.socket) -> int:
    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        _answer(connection, str(pid))
        return pid
    listener.close()
    connection.close()
    code = 1
    try:
        code = _become(json.loads(message), descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(request: dict[str, Any], descriptors: list[int]) -> int:
    """Run what was asked for in this fork; the exit code."""
    os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    atexit._clear()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = request["executable"]
    tempfile.tempdir = None
    random.seed()
    sys.modules["numpy"].random.seed()
    # A fork has lost torch's thread pool, and two threads that load a model at once would both replace it.
    sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        _run(request["arguments"])
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            sys.stderr.write(f"{ending.code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _run(arguments: list[str]) -> None:
    paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kind, *rest = arguments
    sys.path[:1] = [os.getcwd() if kind in ("-m", "-c") else str(Path(kind).resolve().parent), *paths]
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    if paths:
        try:
            importlib.import_module("sitecustomize")
        except ModuleNotFoundError as error:
            if error.name != "sitecustomize":
                raise
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


def _answer(connection: socket.socket, text: str) -> None:
    try:
        connection.send(text.encode())
    except OSError:  # the client has gone; its fork is ended with it
        return


def _end(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
            return
        except ProcessLookupError:  # it has no group yet, or has gone
            continue


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
