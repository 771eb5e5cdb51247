"""docker-compose.yml: its commands, started here as they stand there, are healthy by its own health checks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from django.conf import settings

from tests.web.stacks import Command, find_free_port, run_command, start_command, wait_until

ROOT = Path(__file__).parents[2]

OURS = ("migrate", "web", "worker-cpu", "worker-gpu", "beat")


def read_compose() -> dict[str, Any]:
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(composed, dict)
    return composed


def interpolate(words: list[str], **variables: str) -> tuple[str, ...]:
    """Fill in `${NAME:-default}`, as Compose does."""

    def fill(match: re.Match[str]) -> str:
        return variables.get(match["name"], match["default"])

    return tuple(re.sub(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}", fill, word) for word in words)


class Services:
    """The services of the file as processes of this machine."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._described = read_compose()["services"]
        self._port = str(find_free_port())

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """As `docker compose exec web …` would."""
        return run_command(words, environment=self._environment)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        return run_command(interpolate(self._described[name]["command"]), environment=self._environment)

    @contextmanager
    def running(self, name: str) -> Iterator[Command]:
        words = interpolate(self._described[name]["command"], PLUMBLINE_PORT=self._port, WORKERS="1")
        folder = self._folder / name
        folder.mkdir()
        command = start_command(words, log=folder / "output", environment=self._environment, cwd=folder)
        try:
            yield command
        finally:
            if command.process.poll() is None:
                command.process.kill()
            command.process.wait()

    def is_healthy(self, name: str) -> bool:
        first, *words = self._described[name]["healthcheck"]["test"]
        assert first == "CMD"
        checked = run_command(interpolate(words, PLUMBLINE_PORT=self._port), environment=self._environment)
        return checked.returncode == 0


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """On a new database of the run's own server, with its tables, and a Redis database that no other test uses."""
    folder = tmp_path_factory.mktemp("services")
    server = settings.DATABASES["default"]
    name = f"compose_{os.getpid()}"
    administer = {"host": server["HOST"], "port": server["PORT"] or None, "user": server["USER"], "dbname": "postgres"}
    with psycopg.connect(**administer, password=server["PASSWORD"], autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        environment = {
            **os.environ,
            "DATABASE_URL": f"postgresql://{server['USER']}:{server['PASSWORD']}@/{name}?host={server['HOST']}"
            + (f"&port={server['PORT']}" if server["PORT"] else ""),
            "PLUMBLINE_DATA": str(folder / "data"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        services = Services(folder, environment)
        migrated = services.run("migrate")
        assert migrated.returncode == 0, migrated.stderr
        yield services
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_each_of_our_services_starts_is_healthy_and_stops(services: Services) -> None:
    together = ("web", "worker-cpu", "beat")
    with ExitStack() as running:
        commands = {name: running.enter_context(services.running(name)) for name in together}
        # The slowest first: each asking is a process, which the services would share the machine with.
        assert "serves cpu, gpu" in commands["worker-cpu"].wait_for("cpu-1     ready")
        for name, command in commands.items():
            what = f"{name}:\n{command.log.read_text()}"
            wait_until(partial(services.is_healthy, name), what=what, every_s=1.0)
        assert [command.stop() for command in commands.values()] == [0, 0, 0]
    with ThreadPoolExecutor() as asking:
        assert list(asking.map(services.is_healthy, together)) == [False, False, False]


def test_the_first_administrator_gets_a_link_where_up_does_not_print_it(services: Services) -> None:
    linked = services.call("plumbline", "first-link")
    assert linked.returncode == 0, linked.stderr
    assert re.fullmatch(rf"{settings.ORIGIN}/sign-in/[\w-]{{43}}/\n", linked.stdout)
    signed_in = "from plumbline_web.accounts.domain import sign_in_with; sign_in_with({!r})"
    secret = linked.stdout.strip().rstrip("/").split("/")[-1]
    assert services.call("plumbline", "manage", "shell", "--command", signed_in.format(secret)).returncode == 0
    refused = services.call("plumbline", "first-link")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr == (
        "plumbline: first-link: an administrator has signed in already; ask them for a link, at /users/.\n"
    )


def test_without_a_gpu_the_gpu_service_works_on_the_cpu(services: Services) -> None:
    with services.running("worker-gpu") as command:
        assert "serves gpu" in command.wait_for("cpu-1     ready")
        assert services.is_healthy("worker-gpu")
        assert command.stop(signal.SIGINT) == 0


def test_every_service_restarts_has_a_health_check_and_no_secret() -> None:
    described = read_compose()["services"]
    assert set(described) == {*OURS, "postgres", "redis"}
    for name, service in described.items():
        one_shot = name == "migrate"
        assert service["restart"] == ("no" if one_shot else "unless-stopped")
        assert ("healthcheck" in service) is not one_shot
    assert re.findall(r"(?i)(?:password|secret\w*|token)\s*[:=]", (ROOT / "docker-compose.yml").read_text()) == []


def test_our_services_have_no_rights_to_spare_and_wait_for_the_tables() -> None:
    described = read_compose()["services"]
    for name in OURS:
        assert described[name]["cap_drop"] == ["ALL"]
        assert described[name]["security_opt"] == ["no-new-privileges:true"]
        assert described[name]["env_file"] == "plumbline.env"
        waits = described[name]["depends_on"]
        if name == "migrate":
            assert waits == {"postgres": {"condition": "service_healthy"}}
        else:
            assert waits["migrate"] == {"condition": "service_completed_successfully"}
    assert "USER plumbline" in (ROOT / "Dockerfile").read_text().splitlines()


def test_the_image_holds_every_package_that_it_installs() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert {"capture", "checks", "workers", "plumbline_web", "templates", "static", "constraints.txt"} <= names
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert names == allowed
    assert all((ROOT / name).exists() for name in names)
