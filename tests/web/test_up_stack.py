"""`plumbline up` from the first start to the last process; test_compose.py starts workers of framework runs."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plumbline_web.up.processes import kill, list_marked
from tests.web.stacks import Command, bare_environment, find_free_port, run_command, start_command, wait_until

NOTHING_S = 15.0
"""In which a killed installation's services end by themselves."""


@pytest.fixture
def data() -> Iterator[Path]:
    """Not under pytest's own directory: each run of pytest closes that again to other accounts, PostgreSQL's too."""
    with tempfile.TemporaryDirectory(prefix="plumbline-up-", ignore_cleanup_errors=True) as base:
        yield Path(base) / "data"
        kill(list_marked(str(Path(base) / "data")))


def start_up(data: Path, *, port: int, log: Path) -> Command:
    command = ("plumbline", "up", "--port", str(port), "--data", str(data), "--workers", "0")
    return start_command(command, log=log, environment=bare_environment())


def list_command_lines(data: Path) -> list[str]:
    """Of every process of this machine that carries the directory's mark."""
    lines = []
    for process in list_marked(str(data)):
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return lines


def test_up_serves_refuses_a_second_survives_a_kill_and_leaves_nothing(data: Path, tmp_path: Path) -> None:
    port = find_free_port()
    first = start_up(data, port=port, log=tmp_path / "first.log")
    try:
        link = first.wait_for("sign in, once").split()[-1]
        _check_ready_lines(first, data, port)
        _check_that_it_serves(link)
        _check_that_nothing_secret_shows(data, link)
        _check_that_others_are_refused(data, port, holder=first.process.pid)
    finally:
        first.process.kill()
        first.process.wait()
    # On Linux the kernel tells the services; what is left after that, the next start ends.
    time.sleep(0.2)
    second = start_up(data, port=port, log=tmp_path / "second.log")
    try:
        second.wait_for("sign in, once")
        assert re.search(r"^migrate   ready in [\d.]+ s, 0 migrations applied$", second.log.read_text(), re.MULTILINE)
        assert second.stop(signal.SIGINT) == 0
    finally:
        second.process.kill()
        second.process.wait()
    stopped = [line.split()[0] for line in second.lines if line.endswith("stopped")]
    assert stopped == ["web", "control", "beat", "postgres", "redis"]
    assert list_command_lines(data) == []
    assert not (data / "sockets").exists()


def _check_ready_lines(up: Command, data: Path, port: int) -> None:
    ready = dict(re.findall(r"^(\S+) +ready in [\d.]+ s, (.+)$", up.log.read_text(), re.MULTILINE))
    assert set(ready) == {"redis", "postgres", "migrate", "catalogue", "web", "control", "beat"}
    assert ready["catalogue"].endswith(" of them new, 0 changed")
    assert ready["web"] == f"http://127.0.0.1:{port}"
    assert ready["control"] == f"serves control, host.{os.uname().nodename}"
    sockets = (data / "sockets").resolve()
    assert ready["postgres"] == f"socket {sockets}/postgres"
    assert ready["redis"].startswith(f"socket {sockets}/redis/redis.sock")


def _check_that_it_serves(link: str) -> None:
    with urllib.request.urlopen(link) as page:
        assert page.status == 200
        assert "Sign in" in page.read().decode()


def _check_that_nothing_secret_shows(data: Path, link: str) -> None:
    shown = "\n".join(list_command_lines(data))
    assert "gunicorn" in shown
    assert (data / "secret-key").read_text() not in shown
    logs = "".join(log.read_text() for log in (data / "logs").glob("*.log"))
    assert link.rstrip("/").split("/")[-1] not in logs
    assert (data / "logs").stat().st_mode & 0o077 == 0


def _check_that_others_are_refused(data: Path, port: int, *, holder: int) -> None:
    second = run_command(("plumbline", "up", "--data", str(data)), environment=bare_environment())
    assert (second.returncode, second.stdout) == (3, "")
    assert second.stderr == (
        f"plumbline: data: {data} is in use by process {holder}; stop that one first, or name another directory.\n"
    )
    other = data.with_name("other")
    third = run_command(("plumbline", "up", "--data", str(other), "--port", str(port)), environment=bare_environment())
    assert (third.returncode, third.stdout) == (3, "")
    assert third.stderr == (
        f"plumbline: port: {port} on 127.0.0.1 is in use; stop what listens there, or choose another with --port.\n"
    )
    assert not (other / "postgres").exists()


def test_services_of_a_killed_up_end_by_themselves(data: Path, tmp_path: Path) -> None:
    up = start_up(data, port=find_free_port(), log=tmp_path / "up.log")
    try:
        up.wait_for("redis     ready")
    finally:
        up.process.kill()
        up.process.wait()
    wait_until(lambda: list_marked(str(data)) == set(), what="the services to end")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--port", "eighty"), "'eighty' is not a port; use a number from 0 to 65535"),
        (("--port", "65536"), "'65536' is not a port; use a number from 0 to 65535"),
        (("--workers", "-1"), "'-1' is not a number of workers; use 0 or more"),
        (("--host", "no.such.host.invalid", "--port", "0"), "host: no.such.host.invalid is no address"),
        (("--host", "192.0.2.1", "--port", "0"), "host: 192.0.2.1 is not an address of this machine"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(data: Path, arguments: tuple[str, ...], told: str) -> None:
    refused = run_command(("plumbline", "up", "--data", str(data), *arguments), environment=bare_environment())
    assert refused.returncode == 3
    assert told in refused.stderr
    assert list_command_lines(data) == []


def test_a_database_that_does_not_answer_is_named_without_its_password(data: Path) -> None:
    address = f"postgresql://someone:hunter2@127.0.0.1:{find_free_port()}/nothing"
    refused = run_command(
        ("plumbline", "up", "--data", str(data), "--port", "0"),
        environment=bare_environment(DATABASE_URL=address, REDIS_URL="redis://127.0.0.1:1/0"),
    )
    assert refused.returncode == 3
    assert "plumbline: DATABASE_URL: the database does not answer: " in refused.stderr
    assert "hunter2" not in refused.stderr + refused.stdout


def test_health_says_that_redis_is_gone() -> None:
    environment = bare_environment(DATABASE_URL="postgresql://x@127.0.0.1:1/x", REDIS_URL="redis://127.0.0.1:1/0")
    asked = run_command(("plumbline", "health", "workers"), environment=environment)
    assert asked.returncode == 1
    assert asked.stderr.startswith("plumbline health: workers: Redis does not answer (Error 111 connecting to ")


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    shown = run_command(("plumbline", "--help"), environment=bare_environment())
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("validate", "up", "demo", "work", "health", "manage"))
    heavy = "{'torch', 'transformers', 'django.db', 'plotly', 'psycopg'}"
    loaded = f"import sys, plumbline_web.cli; print({heavy} & set(sys.modules))"
    assert run_command(("python", "-c", loaded), environment=bare_environment()).stdout == "set()\n"
