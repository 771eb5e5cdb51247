"""Which build of torch an environment takes: without a GPU that of a CPU, where one goes with the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.workers.environments.test_environments import releases, store, write_wheel
from workers.cli import main
from workers.environments import building, command, torch_builds
from workers.environments.store import Store

__all__ = ["releases", "store"]

CUDA = ("nvidia-cublas; platform_system == 'Linux'",)


@pytest.fixture
def builds(releases: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch as the public index has it, for a GPU, and a trainer of two releases that requires it."""
    write_wheel(releases, "nvidia_cublas", "13.1")
    for version in ("2.13.0", "2.14.0", "2.15.0"):
        write_wheel(releases, "torch", version, needs=CUDA)
    write_wheel(releases, "tuner", "1.0", code="import torch", needs=("torch>=2.13",))
    write_wheel(releases, "tuner", "2.0", code="import torch", needs=("torch>=2.14",))
    _give(monkeypatch, gpu=False)
    return releases


def _give(monkeypatch: pytest.MonkeyPatch, *, gpu: bool) -> None:
    for module in (building, command):
        monkeypatch.setattr(module, "has_gpu", lambda: gpu)


def _create(store: Store, *arguments: str) -> tuple[str, ...]:
    assert main(["env", "create", *arguments, "--name", "made"]) == 0
    built = store.find("made").built
    assert built is not None
    return built.packages


def test_the_newest_cpu_build_is_taken_though_a_newer_torch_is_there_for_a_gpu(
    builds: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(builds, "torch", "2.13.0+cpu")
    write_wheel(builds, "torch", "2.14.0+cpu")
    assert _create(store, "tuner==1.0") == ("torch==2.14.0+cpu", "tuner==1.0")
    assert "build for a GPU" not in capsys.readouterr().out


def test_the_release_that_was_asked_for_stays(builds: Path, store: Store) -> None:
    write_wheel(builds, "torch", "2.13.0+cpu")
    write_wheel(builds, "torch", "2.14.0+cpu")
    assert _create(store, "tuner==1.0", "--with", "torch==2.13.0") == ("torch==2.13.0+cpu", "tuner==1.0")


def test_where_none_goes_with_the_rest_the_gpus_is_taken_and_said(
    builds: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(builds, "torch", "2.13.0+cpu")
    assert _create(store, "tuner==2.0") == ("nvidia-cublas==13.1", "torch==2.15.0", "tuner==2.0")
    assert "torch is its build for a GPU, which this machine does not have" in capsys.readouterr().out


def test_with_a_gpu_pips_own_choice_stays(
    builds: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _give(monkeypatch, gpu=True)
    write_wheel(builds, "torch", "2.13.0+cpu")
    assert _create(store, "tuner==1.0") == ("nvidia-cublas==13.1", "torch==2.15.0", "tuner==1.0")
    assert "build for a GPU" not in capsys.readouterr().out


def test_an_index_of_cpu_builds_is_asked_where_there_are_none_and_nobody_named_an_index(
    builds: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(name: str, *wheels: Path) -> str:
        for wheel in wheels:
            folder = tmp_path / name / wheel.name.partition("-")[0].replace("_", "-")
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel, folder)
            links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in folder.glob("*.whl"))
            (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
        return (tmp_path / name).as_uri()

    public = serve("public", *builds.glob("*.whl"))
    write_wheel(builds, "torch", "2.15.0+cpu")
    monkeypatch.setattr(torch_builds, "CPU_INDEX", serve("cpu", builds / "torch-2.15.0+cpu-py3-none-any.whl"))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", public)
    assert _create(store, "tuner==1.0") == ("torch==2.15.0+cpu", "tuner==1.0")
    assert "torch==2.15.0" in _create(store, "tuner==1.0", "--index-url", public)
    monkeypatch.setattr(torch_builds, "CPU_INDEX", (tmp_path / "nowhere").as_uri())
    assert "torch==2.15.0" in _create(store, "tuner==1.0")
