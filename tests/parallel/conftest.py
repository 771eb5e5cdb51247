"""Divided runs, each made once a test run: healthy ones by torchrun, faulty ones and those of one process in forks."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checks.assemble import assemble
from checks.captures.capture import open_capture
from checks.faults import fault, was_in_force
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.parallel import parallel_data, parallel_gradients, parallel_replicas
from checks.roles import Role
from checks.samples import resolve_data
from checks.spec import RunSpec
from checks.verdict import Verdict
from tests.parallel.dividing import BIASED, CASES, Case
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python
from workers.runner import run_framework

LIMIT_S = 300.0


@dataclass(frozen=True)
class Divided:
    """Every recorded run by its name, and what the checks say of it."""

    directory: Path

    def material(self, name: str, *, references: bool = False) -> Material:
        """A faulty or healthy case of `dividing.py`, beside the run of one process."""
        case = CASES[name]
        spec = case.spec(self.directory)
        return _assemble(spec, self.directory / name, self.directory / _single(case), references=references)

    def judge(self, name: str) -> dict[str, Verdict]:
        """check → verdict; the fault of the case must have taken effect."""
        case = CASES[name]
        assert case.inject is None or was_in_force(fault(case.inject), log=self.directory / name / "log")
        return judge_all(self.material(name))


def judge_all(material: Material) -> dict[str, Verdict]:
    """The parallel checks that have something to say on the run."""
    checks = (parallel_data.CHECK, parallel_replicas.CHECK, parallel_gradients.CHECK)
    return {check.name: check.judge(material) for check in checks if check.applies(material.spec) is None}


@pytest.fixture(scope="session")
def divided(shared: Path, _shared_cache: None) -> Divided:
    """All cases of `dividing.py`."""
    directory = shared / "divided"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            command = [framework_python(), "-m", "tests.parallel.dividing", str(directory)]
            root = Path(__file__).parents[2]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=400, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            (directory / "done").touch()
    return Divided(directory)


@pytest.fixture(scope="session")
def by_torchrun(shared: Path, divided: Divided) -> Callable[..., Material]:
    """Run the plain loop under the recorder and torchrun, and put the run of one process beside it."""

    def run(name: str, *, single: str, family: str, references: bool, **settings: Any) -> Material:
        spec = RunSpec("plain", resolve_model(f"tiny:{family}").path, resolve_data("gsm8k_sample"), steps=1, **settings)
        directory = shared / "torchrun" / name
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / "done").exists():
                scratch = directory / "scratch"
                done = run_framework(
                    adapter("plain").prepare(spec, scratch),
                    out=directory / "capture",
                    scratch=scratch,
                    log=directory / "log",
                    steps=(1,),
                    time_limit_s=LIMIT_S,
                    memory_limit_bytes=None,
                    on_line=lambda line: None,
                    cancelled=lambda: False,
                )
                assert done.ending == "completed", done.last_error
                (directory / "done").touch()
        return _assemble(spec, directory, divided.directory / single, references=references)

    return run


def _single(case: Case) -> str:
    if case.family == BIASED:
        return "single-tp-biased"
    return next(f"single-{axis}" for axis in ("dp", "tp", "ep") if f"{axis}_size" in case.settings)


def _assemble(spec: RunSpec, run: Path, single: Path, *, references: bool) -> Material:
    outcomes = {
        role: RunOutcome("completed", 0, 1.0, None, open_capture(directory / "capture"), None)
        for role, directory in ((Role.RUN, run), (Role.SINGLE, single))
    }
    return assemble(spec, outcomes, references=references, definition=False)
