"""The services that are Plumbline itself: their command lines and how each shows that it is ready."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
from pathlib import Path

from plumbline_web.up.service import Service
from workers.devices.listing import DEVICES, list_devices
from workers.queues import CONTROL, CPU, GPU, host_queue

CELERY = (sys.executable, "-m", "celery", "-A", "plumbline_web")

WARM_S = 10.0
"""How long a worker may finish its run for. A longer run is given back, and begun again by the next worker."""

COLD_S = 15.0
"""A run that is broken off gets 8 s for its last words: `workers.sandbox.GRACE_S`."""

BACKLOG = 1024
"""Connections that wait while the web server starts again."""

PROBE_S = 1.0
SLOWEST_PING_S = 0.5

HEALTH_PATH = "/sign-in/"
"""The one page that needs no account."""


def bind_socket(host: str, port: int) -> socket.socket:
    """The web server's listening socket, held by the parent: a restarted web server refuses no connection.

    Raises:
        socket.gaierror: there is no such host.
        OSError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
    return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)


def describe_web(listener: socket.socket, *, address: str) -> Service:
    """gunicorn on a socket that is already open."""
    fd = listener.fileno()
    host, port = listener.getsockname()[:2]
    return Service(
        name="web",
        command=(
            *(sys.executable, "-m", "gunicorn", "--config", "python:plumbline_web.up.gunicorn"),
            *("--bind", f"fd://{fd}", "plumbline_web.wsgi"),
        ),
        is_ready=lambda pid: answers(_local(host), port),
        detail=address,
        end_signal=signal.SIGQUIT,
        pass_fds=(fd,),
    )


def answers(host: str, port: int) -> bool:
    """Whether the site answers with a page, by a name that it answers to."""
    name = os.environ.get("PLUMBLINE_HOSTS", "localhost").split(",")[0].lstrip(".").replace("*", "localhost")
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_S)
    try:
        connection.request("GET", HEALTH_PATH, headers={"Host": name, "X-Forwarded-Proto": "https"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _local(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def describe_worker(name: str, *, queues: tuple[str, ...], gpus: str, pool: tuple[str, ...] = ()) -> Service:
    """One process that runs one thing at a time; `gpus` is what it sees as CUDA_VISIBLE_DEVICES itself, `pool` what it
    lends to its runs: the machine's, which all its workers share.
    """
    node = f"{name}@{socket.gethostname()}"
    return Service(
        name=name,
        command=(
            *CELERY,
            *("worker", "--hostname", node, "--queues", ",".join(queues), "--pool", "prefork", "--concurrency", "1"),
            # Nobody listens to heartbeats; and where Redis has ended first, sending the last one is tried for long.
            *("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"),
        ),
        is_ready=lambda pid: responds(node),
        detail=f"serves {', '.join(queues)}" + (f" with GPU {gpus}" if gpus else ""),
        stop_s=WARM_S,
        end_signal=signal.SIGQUIT,
        end_s=COLD_S,
        environment={
            "CUDA_VISIBLE_DEVICES": gpus,
            DEVICES: ",".join(pool),
            # Tiny models are a hundred times slower with several threads.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "TOKENIZERS_PARALLELISM": "false",
        },
    )


def describe_control() -> Service:
    """The worker of what must not wait behind a run, and of what only this machine can do."""
    return describe_worker(CONTROL, queues=(CONTROL, host_queue(socket.gethostname())), gpus="")


def describe_runners(queues: tuple[str, ...], *, workers: int, gpus: tuple[str, ...]) -> tuple[Service, ...]:
    """The workers of framework runs: one a GPU for `gpu`, `workers` on the CPU for `cpu`.

    Where there is no GPU, the CPU workers serve `gpu` too, and a verdict says what its run ran on.
    """
    here: list[Service] = []
    on_cpu = tuple(queue for queue in queues if queue == CPU or not gpus)
    if GPU in queues:
        here += (
            describe_worker(f"gpu-{number}", queues=(GPU,), gpus=gpu, pool=gpus) for number, gpu in enumerate(gpus)
        )
    if on_cpu:
        here += (describe_worker(f"cpu-{number}", queues=on_cpu, gpus="") for number in range(1, workers + 1))
    return tuple(here)


def describe_beat(folder: Path) -> Service:
    """What sends the sweeper and the schedules on their way; one an installation."""
    node = f"beat@{socket.gethostname()}"
    return Service(
        name="beat",
        command=(
            *CELERY,
            *("beat", "--schedule", str(folder / "schedule"), "--loglevel", "INFO"),
            *("--enable-remote-control", "--hostname", node),
        ),
        is_ready=lambda pid: responds(node),
        detail="sends schedules and the sweeper",
    )


def responds(node: str) -> bool:
    """Whether a worker or beat answers over the broker. Sets Django up in this process."""
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    from plumbline_web.celery import app

    try:
        # A connection of its own: one of the pool may be of a broker that has died since.
        with app.connection_for_write() as broker:
            return bool(app.control.ping(destination=[node], timeout=SLOWEST_PING_S, connection=broker))
    except (OperationalError, RedisError, OSError):
        return False


def list_gpus() -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may name, one by one."""
    return list_devices()
