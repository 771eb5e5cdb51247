"""All services of one machine, in the order in which they need each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from plumbline_web.up.accounts import find_database_account
from plumbline_web.up.directory import DataDirectory, read_secret_key
from plumbline_web.up.interrupts import Interrupts
from plumbline_web.up.postgres import describe_postgres, make_database, prepare_postgres
from plumbline_web.up.preparation import load_problems, make_first_link, migrate
from plumbline_web.up.programs import describe_beat, describe_control, describe_runners, describe_web, list_gpus
from plumbline_web.up.redis import describe_redis, find_redis, redis_url
from plumbline_web.up.service import Service
from plumbline_web.up.supervisor import Supervisor
from workers.queues import CPU, GPU


@dataclass(frozen=True)
class Address:
    """Where the site listens."""

    listener: socket.socket
    host: str
    """as asked"""

    @property
    def origin(self) -> str:
        """As a browser on this machine, or on another where the site listens to all, writes it."""
        host, port = (
            socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host,
            self.listener.getsockname()[1],
        )
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names that the site answers to."""
        named = {socket.gethostname(), socket.getfqdn()} if self.host in ("0.0.0.0", "::") else {self.host.strip("[]")}
        return ("localhost", "127.0.0.1", "[::1]", *(f"[{name}]" if ":" in name else name for name in sorted(named)))


class Stack:
    """PostgreSQL, Redis, web server, workers and beat as children of this process."""

    def __init__(
        self,
        directory: DataDirectory,
        *,
        address: Address,
        workers: int,
        interrupts: Interrupts,
        say: Callable[[str, str], None],
    ) -> None:
        self.first_link: str | None = None
        """where the first administrator signs in, once; None where one has signed in"""
        self._directory = directory
        self._address = address
        self._workers = workers
        self._say = say
        self._supervisor = Supervisor(
            mark=str(directory.path),
            logs=directory.logs,
            say=say,
            stop_asked=interrupts.stop_asked,
            in_a_hurry=interrupts.in_a_hurry,
        )

    def start(self) -> None:
        """Start everything and return once all of it is ready. Sets Django up in this process.

        Raises:
            BadRequest: something of the machine or of the environment does not fit.
            ServiceFailed, StopAsked: as `Supervisor.start`.
        """
        self._start_stores()
        self._export_settings()
        begun = time.monotonic()
        done = migrate()
        self._say("migrate", f"ready in {time.monotonic() - begun:.1f} s, {done} migrations applied")
        begun = time.monotonic()
        problems = load_problems()
        self._say("catalogue", f"ready in {time.monotonic() - begun:.1f} s, {problems}")
        gpus = list_gpus()
        self._supervisor.start(
            describe_web(self._address.listener, address=self._address.origin),
            describe_control(),
            *describe_runners((CPU, GPU), workers=self._workers, gpus=gpus),
            describe_beat(self._directory.beat),
        )
        self.first_link = make_first_link(os.environ["PLUMBLINE_ORIGIN"].rstrip("/"))

    def _start_stores(self) -> None:
        """Start what DATABASE_URL and REDIS_URL do not name, and name it there: services inherit them."""
        stores: list[Service] = []
        sockets = self._directory.sockets
        if "DATABASE_URL" not in os.environ:
            account = find_database_account()
            for note in prepare_postgres(self._directory.postgres, account=account):
                self._say("postgres", note)
            stores.append(describe_postgres(self._directory.postgres, socket=sockets / "postgres", account=account))
        if "REDIS_URL" not in os.environ:
            stores.append(describe_redis(sockets / "redis" / "redis.sock", program=find_redis()))
            os.environ["REDIS_URL"] = redis_url(sockets / "redis" / "redis.sock")
        self._supervisor.start(*stores)
        if "DATABASE_URL" not in os.environ:
            os.environ["DATABASE_URL"] = make_database(sockets / "postgres")

    def _export_settings(self) -> None:
        """In the environment, which no other account reads; a command line can be seen by all."""
        for name, value in {
            "PLUMBLINE_DATA": str(self._directory.data),
            "PLUMBLINE_SECRET_KEY": read_secret_key(self._directory),
            "PLUMBLINE_ORIGIN": self._address.origin,
            "PLUMBLINE_HOSTS": ",".join(self._address.hosts),
        }.items():
            os.environ.setdefault(name, value)

    @property
    def origin(self) -> str:
        """The address of the site on this machine, whatever a proxy in front of it calls it."""
        return self._address.origin

    def tick(self) -> None:
        """As `Supervisor.tick`; call it again and again while the stack runs."""
        self._supervisor.tick()

    def stop(self) -> None:
        """End everything, in the order in which nothing misses what it needs."""
        self._supervisor.stop_but("postgres", "redis")
        self._supervisor.stop("redis", "postgres")
