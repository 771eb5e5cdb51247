"""The executable's own part: hand over what this process was started with, pass signals on, and end as the fork does.

Read by `make_interpreter`, which puts PYTHON, SERVER, ADDRESS and OWNER before it.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time

PATIENCE_S = 240.0
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main():
    arguments = sys.argv[1:]
    options = [argument for argument in arguments[:1] if argument == "-u"]
    rest = arguments[len(options) :]
    if not rest or not (rest[0] in ("-m", "-c") or rest[0].endswith(".py")):
        os.execv(PYTHON, [PYTHON, *arguments])  # noqa: F821
    received, child = [], []

    def pass_on(number, frame):
        received.append(number)
        if child:
            send(child[0], number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    connection = connect()
    request = {"arguments": rest, "environment": dict(os.environ), "directory": os.getcwd(), "executable": sys.argv[0]}
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    child.append(int(connection.recv(64)))
    for number in received:
        send(child[0], number)
    answer = connection.recv(64)
    end_as(int(answer) if answer else 1)


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(ADDRESS)  # noqa: F821
    except OSError:
        start_server()
        connection.connect(ADDRESS)  # noqa: F821
    return connection


def start_server():
    """One of the processes that find no server starts it; it belongs to none of them."""
    with open(ADDRESS + ".lock", "w") as lock:  # noqa: F821
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(ADDRESS):  # noqa: F821
            return
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        settings |= {"HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "offline"}
        log = open(ADDRESS + ".log", "ab")  # noqa: F821, SIM115
        command = [PYTHON, SERVER, ADDRESS, str(OWNER)]  # noqa: F821
        subprocess.run(
            ["setsid", "--fork", *command],
            env={**kept, **settings},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )
        end = time.monotonic() + PATIENCE_S
        while not os.path.exists(ADDRESS) and time.monotonic() < end:  # noqa: F821
            time.sleep(0.05)


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def end_as(code):
    """End with the fork's exit code, or by the signal that ended it."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code
    sys.exit(code)


main()
