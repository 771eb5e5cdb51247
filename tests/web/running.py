"""Real Celery workers on a test's database, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from django.conf import settings
from django.db import connection

from plumbline_web.celery import app
from plumbline_web.validations.enums import OPEN
from plumbline_web.validations.models import Validation
from plumbline_web.validations.sweeping import sweep
from workers.jobs import computer
from workers.queues import CONTROL, CPU, GPU, host_queue

START_LIMIT_S = 60.0


def database_url() -> str:
    """The address of the test's own database."""
    database = connection.settings_dict
    name, user, host = (quote(str(database[key]), safe="") for key in ("NAME", "USER", "HOST"))
    return f"postgresql://{user}:{quote(str(database['PASSWORD']))}@/{name}?host={host}&port={database['PORT']}"


@contextmanager
def worker(log: Path, *, queues: tuple[str, ...] = (CPU, GPU)) -> Iterator[subprocess.Popen[bytes]]:
    """One worker with one pool process; its output in `log`. It is ended with all its processes."""
    # Its computing processes begin as this process has them begin.
    begin = f"from workers.jobs import computer; computer.PYTHON = {computer.PYTHON!r}"
    command = [sys.executable, "-c", f"{begin}; from celery.__main__ import main; main()", "-A", "plumbline_web"]
    command += ["worker", "-c", "1", "-Q", ",".join(queues)]
    command += ["--without-gossip", "--without-mingle", "-l", "INFO", "-n", f"{log.stem}@%h"]
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "REDIS_URL": settings.CELERY_BROKER_URL,
        "PLUMBLINE_DATA": str(settings.DATA),
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until(lambda: _is_ready(process, log), what=f"the worker {log.stem}")
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _is_ready(process: subprocess.Popen[bytes], log: Path) -> bool:
    output = log.read_text(errors="replace")
    assert process.poll() is None, output[-2000:]
    return "ready." in output


def wait_until(
    holds: Callable[[], bool], *, what: str, limit_s: float = START_LIMIT_S, meanwhile: Callable[[], None] | None = None
) -> None:
    """Poll until a condition holds; fails with what was waited for."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"waited {limit_s:g} s for {what}"
        if meanwhile is not None:
            meanwhile()
        time.sleep(0.2)


def wait_for(*validations: Validation, limit_s: float = 180.0) -> list[Validation]:
    """Wait until validations have ended, sweeping meanwhile; they come back in the order of their numbers."""
    numbers = [validation.pk for validation in validations]

    def ended() -> bool:
        return not Validation.objects.filter(pk__in=numbers, state__in=OPEN).exists()

    wait_until(ended, what="the validations to end", limit_s=limit_s, meanwhile=sweep_here)
    return list(Validation.objects.filter(pk__in=numbers).order_by("pk"))


def sweep_here() -> None:
    """What beat asks for every few seconds."""
    sweep(host=os.uname().nodename)


def empty_queues() -> None:
    """Messages of an earlier test must not reach this one's workers."""
    with app.connection_for_write() as broker:
        for queue in (CONTROL, CPU, GPU, host_queue(os.uname().nodename)):
            broker.default_channel.client.delete(queue)
