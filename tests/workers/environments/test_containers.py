"""Frameworks of a container image: what a run is given, what it sees, and how it ends.

The engine is a stand-in (tests/containers) that runs the command as a process of this machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.errors import BadRequest
from tests.containers import engine
from workers import cli
from workers.environments.containers import VARIABLE, choose_mounts, enclose, find_engine, framework_image
from workers.environments.store import Store
from workers.environments.using import running_in
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import VARIABLE as PYTHON
from workers.frameworks.interpreter import framework_python, require_module
from workers.launchers.slurm import Slurm
from workers.runner import FrameworkRun, run_framework

IMAGE = "lab/trl:1.16"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker with one image, whose Python is the one that the frameworks run in here."""
    directory = tmp_path / "engine"
    directory.mkdir()
    (directory / "images").write_text(f"{IMAGE}\nscratch\n")
    (directory / "python").write_text(framework_python())
    engine.install(tmp_path / "bin", "docker")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{directory}")
    monkeypatch.setenv("PLUMBLINE_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return directory


def calls(state: Path) -> list[list[str]]:
    return [json.loads(line) for line in (state / "calls").read_text().splitlines()]


def run(tmp_path: Path, *command: str, launch: Mapping[str, object] | None = None, **limits: object) -> FrameworkRun:
    given = {"environment": {}, "full_parameters": None, "output": tmp_path / "output", **(launch or {})}
    limits = {"time_limit_s": 60.0, "memory_limit_bytes": None, "cancelled": lambda: False, **limits}
    return run_framework(
        Launch(command=command, **given),  # type: ignore[arg-type]
        out=tmp_path / "capture",
        scratch=tmp_path / "scratch",
        log=tmp_path / "log",
        steps=(1,),
        on_line=lambda line: None,
        **limits,  # type: ignore[arg-type]
    )


def test_an_image_is_named_listed_and_checked(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "add", "boxed", "--container", IMAGE]) == 0
    assert capsys.readouterr().out.startswith("boxed: Python 3.")
    assert cli.main(["env", "list"]) == 0
    assert f"boxed\n  container {IMAGE}\n" in capsys.readouterr().out
    assert cli.main(["env", "check", "boxed"]) == 0
    assert capsys.readouterr().out == "boxed: runs\n"
    (state / "images").write_text("")
    assert cli.main(["env", "check"]) == 1
    said = f"boxed: docker has no image {IMAGE} (Error: No such image: {IMAGE})\n"
    assert capsys.readouterr().out == said
    assert cli.main(["env", "remove", "boxed"]) == 0


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (
            "lab/trl:2",
            "container: docker has no image lab/trl:2 (Error: No such image: lab/trl:2); fetch it with docker",
        ),
        ("--privileged", "container: '--privileged' is no name of an image; write it as NAME:TAG."),
        ("a b", "container: 'a b' is no name of an image; write it as NAME:TAG."),
    ],
)
def test_an_image_that_is_not_there_is_no_environment(
    image: str, sentence: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["env", "add", "boxed", f"--container={image}"]) == 3
    assert sentence in capsys.readouterr().err
    assert Store().list_names() == ()


def test_an_image_without_python_is_none_either(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / "python").write_text("")
    assert cli.main(["env", "add", "boxed", "--container", "scratch"]) == 3
    said = 'container: scratch runs no python3 (exec: "python3": executable file not found in $PATH); name an image'
    assert said in capsys.readouterr().err


def test_without_an_engine_the_sentence_says_so_and_podman_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert cli.main(["env", "add", "boxed", "--container", IMAGE]) == 3
    assert "container: neither docker nor podman is on the path; install one, or" in capsys.readouterr().err
    engine.install(tmp_path / "bin", "podman")
    assert find_engine() == str(tmp_path / "bin" / "podman")
    launch = Launch(command=("python3",), environment={}, full_parameters=None, output=tmp_path)
    boxed = enclose(
        launch, image=IMAGE, name="n", out=tmp_path, scratch=tmp_path, preload=(), memory_limit_bytes=None, variables=()
    )
    assert "--userns=keep-id" in boxed.command


def test_a_run_is_given_what_it_needs_and_nothing_else(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, IMAGE)
    monkeypatch.setenv("PLUMBLINE_TOKEN", "secret")
    model = tmp_path / "model"
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "weights").write_text("w")
    model.mkdir()
    (model / "weights").symlink_to(tmp_path / "blobs" / "weights")
    script = tmp_path / "drivers" / "print.py"
    script.parent.mkdir()
    script.write_text("import os, json; print(json.dumps([dict(os.environ), os.getcwd(), os.getuid()]))")
    launch = {"environment": {"MASTER_PORT": "1"}, "reads": (model,)}
    done = run(tmp_path, "python3", str(script), launch=launch, memory_limit_bytes=10**9)
    assert (done.exit_code, done.ending) == (0, "completed")
    variables, directory, user = json.loads(done.log.read_text().splitlines()[-1])
    scratch = str(tmp_path / "scratch")
    assert (directory, user) == (scratch, os.getuid())
    assert (variables["HOME"], variables["TMPDIR"], variables["MASTER_PORT"]) == (scratch, scratch, "1")
    assert variables["HF_HUB_OFFLINE"] == variables["OMP_NUM_THREADS"] == "1"
    assert not {"PLUMBLINE_TOKEN", "DOCKER_HOST", "PLUMBLINE_RUN"} & set(variables)
    (first, *rest), last = calls(state)
    assert first == "run"
    assert {"--network=none", f"--user={os.getuid()}:{os.getgid()}", "--memory=1000000000", "--rm"} <= set(rest)
    mounts = [rest[place + 1] for place, each in enumerate(rest) if each == "--mount"]
    bound = {each.split(",")[1].removeprefix("source="): each.endswith(",readonly") for each in mounts}
    assert {path for path, readonly in bound.items() if not readonly} == {scratch, str(tmp_path / "capture")}
    assert {str(model), str(tmp_path / "blobs" / "weights"), str(script.parent)} <= set(bound)
    assert last[:2] == ["rm", "--force"]
    assert last[2].startswith("plumbline-")


def test_a_run_that_is_too_long_is_ended_with_its_container(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, IMAGE)
    begun = time.monotonic()
    done = run(tmp_path, "sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60", time_limit_s=1.0)
    assert done.ending == "timed_out"
    assert time.monotonic() - begun < 30
    assert list(state.glob("*.pid")) == []


def test_a_job_of_a_cluster_is_no_container(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, IMAGE)
    with pytest.raises(BadRequest, match="launcher: the jobs of a cluster are not started in containers"):
        run(tmp_path, "true", launcher=Slurm())


def test_a_path_with_a_comma_cannot_be_mounted(tmp_path: Path) -> None:
    launch = Launch(("python3",), {}, None, tmp_path, reads=(tmp_path / "a,b",))
    with pytest.raises(BadRequest, match="has a comma, and cannot be mounted; rename it"):
        choose_mounts(launch, out=tmp_path / "out", scratch=tmp_path / "scratch", preload=())


def test_frameworks_run_in_the_named_image_and_nowhere_else_afterwards(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, "/before")
    Store().name("boxed", image=IMAGE)
    with running_in("boxed", store=Store()):
        assert (framework_image(), framework_python("trl"), os.environ.get(PYTHON)) == (IMAGE, "python3", None)
        require_module("json", framework="trl", remedy="install it")
        with pytest.raises(
            BadRequest, match=f"framework: nothing_such is not installed in {IMAGE}; name an image that"
        ):
            require_module("nothing_such", framework="nothing_such", remedy="install it")
    assert (framework_image(), os.environ[PYTHON]) == (None, "/before")


@pytest.mark.usefixtures("_shared_cache")
def test_a_validation_in_a_container_passes_and_its_fault_fails(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store().name("boxed", image=IMAGE)
    asked = ["validate", "--local", "--env", "boxed", "--framework", "plain", "--model", "tiny:qwen3"]
    asked += ["--data", "gsm8k_sample", "--checks", "run.completes,step.gradients", "--inject", "gradient-zeroed"]
    file = tmp_path / "result.json"
    assert cli.main([*asked, "--json", str(file)]) == 1, capsys.readouterr()
    found = {each["check"]: each["status"] for each in json.loads(file.read_text())["verdicts"]}
    assert found == {"run.completes": "pass", "step.gradients": "fail"}
