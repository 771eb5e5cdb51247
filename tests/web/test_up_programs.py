"""Which workers a machine gets, and by what the site is reached."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from checks.errors import BadRequest
from plumbline_web.up.command import allow_roots
from plumbline_web.up.programs import bind_socket, describe_runners, list_gpus
from plumbline_web.up.service import Service
from plumbline_web.up.stack import Address


def summarize(*services: Service) -> list[tuple[str, str, str]]:
    """Name, queues and visible GPUs of each."""
    return [
        (each.name, each.command[each.command.index("--queues") + 1], each.environment["CUDA_VISIBLE_DEVICES"])
        for each in services
    ]


def test_without_a_gpu_the_cpu_workers_serve_both_queues() -> None:
    assert summarize(*describe_runners(("cpu", "gpu"), workers=2, gpus=())) == [
        ("cpu-1", "cpu,gpu", ""),
        ("cpu-2", "cpu,gpu", ""),
    ]


def test_each_gpu_has_a_worker_that_sees_it_alone() -> None:
    assert summarize(*describe_runners(("cpu", "gpu"), workers=1, gpus=("0", "3"))) == [
        ("gpu-0", "gpu", "0"),
        ("gpu-1", "gpu", "3"),
        ("cpu-1", "cpu", ""),
    ]


def test_a_machine_for_gpus_has_no_worker_on_the_cpu_unless_it_has_no_gpu() -> None:
    assert summarize(*describe_runners(("gpu",), workers=1, gpus=("0",))) == [("gpu-0", "gpu", "0")]
    assert summarize(*describe_runners(("gpu",), workers=1, gpus=())) == [("cpu-1", "gpu", "")]


def test_each_worker_does_one_thing_at_a_time() -> None:
    (worker,) = describe_runners(("cpu",), workers=1, gpus=())
    assert worker.command[worker.command.index("--concurrency") + 1] == "1"
    assert f"cpu-1@{socket.gethostname()}" in worker.command


@pytest.mark.parametrize(
    ("given", "listed"), [("0,2", ("0", "2")), ("GPU-aa, GPU-bb", ("GPU-aa", "GPU-bb")), ("", ()), ("-1", ())]
)
def test_cuda_visible_devices_decides_where_it_is_set(
    given: str, listed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert list_gpus() == listed


@pytest.mark.parametrize(("script", "listed"), [("echo 0; echo 1", ("0", "1")), ("echo failed >&2; exit 9", ())])
def test_else_the_driver_lists_the_gpus(
    script: str, listed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list_gpus() == listed


def test_the_site_on_this_machine_alone_answers_to_its_names() -> None:
    with bind_socket("127.0.0.1", 0) as listener:
        address = Address(listener, "127.0.0.1")
        assert address.origin == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert set(address.hosts) == {"localhost", "127.0.0.1", "[::1]"}


def test_the_site_on_every_address_goes_by_the_machines_name() -> None:
    with bind_socket("0.0.0.0", 0) as listener:
        address = Address(listener, "0.0.0.0")
        assert address.origin == f"http://{socket.gethostname()}:{listener.getsockname()[1]}"
        assert {socket.gethostname(), "localhost"} <= set(address.hosts)


def test_an_address_of_ip_version_6_is_written_in_brackets() -> None:
    with bind_socket("::1", 0) as listener:
        address = Address(listener, "::1")
        assert address.origin == f"http://[::1]:{listener.getsockname()[1]}"
        assert set(address.hosts) == {"localhost", "127.0.0.1", "[::1]"}


def test_allowed_roots_are_added_to_those_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    models.mkdir()
    monkeypatch.setenv("PLUMBLINE_ROOTS", "/srv/data")
    allow_roots([models])
    assert os.environ["PLUMBLINE_ROOTS"] == f"/srv/data:{models}"
    with pytest.raises(BadRequest, match="nothing is not a directory; name one that exists"):
        allow_roots([tmp_path / "nothing"])
    odd = tmp_path / "a:b"
    odd.mkdir()
    with pytest.raises(BadRequest, match="holds a ':'; name one without it"):
        allow_roots([odd])
