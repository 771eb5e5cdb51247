"""Three real captures, made once a test run, and what is assembled of them, once a worker.

Everything else judges edited copies of these: `swap` puts a copy in the place of the capture that it was made from.
"""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.assemble import assemble
from checks.captures.capture import Capture, open_capture
from checks.captures.log import keep_log
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.roles import Role, spec_of
from checks.samples import resolve_data
from checks.spec import RunSpec
from tests.checks.editing import Edit
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python
from workers.planner import PlannedRun
from workers.runner import run_framework

Editor = Callable[..., Edit]


@dataclass(frozen=True)
class Recording:
    """One framework run that was recorded whole."""

    spec: RunSpec
    capture: Path


@pytest.fixture(scope="session")
def recordings(shared: Path) -> dict[str, Recording]:
    """`run`: Trainer, steps 1 and 3; `merged`: its rows as one batch; `packed`: TRL, packed, steps 1 and 3."""
    model = resolve_model("tiny:qwen3").path
    run = RunSpec("transformers", model, resolve_data("gsm8k_sample"))
    packed = RunSpec("trl", model, resolve_data("tulu3_sample"), packing=True)
    specs = {"run": run, "merged": spec_of(Role.MERGED, run), "packed": packed}
    root = shared / "recordings"
    root.mkdir(exist_ok=True)
    return {label: _record(root / label, spec) for label, spec in specs.items()}


def _record(directory: Path, spec: RunSpec, *, role: Role = Role.RUN) -> Recording:
    """Record the run where no other worker has yet."""
    with (directory.parent / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "recorded").exists():
            scratch = directory / "scratch"
            launch = adapter(spec.framework).prepare(spec, scratch)
            planned = PlannedRun(role, spec, ())
            done = run_framework(
                launch,
                out=directory / "capture",
                scratch=scratch,
                log=directory / "log",
                steps=planned.captured_steps,
                modules=planned.modules,
                full=True,
                time_limit_s=300.0,
                memory_limit_bytes=None,
                on_line=lambda line: None,
                cancelled=lambda: False,
            )
            assert done.ending == "completed", done.last_error
            keep_log(directory / "capture", adapter(spec.framework).read_log(launch.output, directory / "log"))
            (directory / "recorded").touch()
    return Recording(spec, directory / "capture")


@pytest.fixture(scope="session")
def healthy(recordings: dict[str, Recording]) -> Material:
    """The Trainer's run with its merged twin, every reference and the definition."""
    run, merged = recordings["run"], recordings["merged"]
    return assemble(
        run.spec, {Role.RUN: _outcome(run), Role.MERGED: _outcome(merged)}, references=True, definition=True
    )


@pytest.fixture(scope="session")
def packed(recordings: dict[str, Recording]) -> Material:
    """TRL's packed run, with its references."""
    run = recordings["packed"]
    return assemble(run.spec, {Role.RUN: _outcome(run)}, references=True, definition=False)


@pytest.fixture(scope="session")
def probed(shared: Path, recordings: dict[str, Recording]) -> Material:
    """The Trainer's run, and its model asked about batches of our own choice."""
    run = recordings["run"]
    asked = _record(shared / "recordings" / "probed", spec_of(Role.PROBED, run.spec))
    outcomes = {Role.RUN: _outcome(run), Role.PROBED: _outcome(asked)}
    return assemble(run.spec, outcomes, references=False, definition=False)


@pytest.fixture(scope="session")
def traced(shared: Path, recordings: dict[str, Recording]) -> Material:
    """The Trainer's run, and its first step again with what every module received and gave."""
    run = recordings["run"]
    again = _record(shared / "recordings" / "traced", spec_of(Role.TRACED, run.spec), role=Role.TRACED)
    outcomes = {Role.RUN: _outcome(run), Role.TRACED: _outcome(again)}
    return assemble(run.spec, outcomes, references=True, definition=False)


@pytest.fixture(scope="session")
def resumed(shared: Path, recordings: dict[str, Recording]) -> Material:
    """The Trainer's run, and the same run saved after step 2 and resumed."""
    run = recordings["run"]
    taken_up = _record(shared / "recordings" / "resumed", spec_of(Role.RESUMED, run.spec))
    outcomes = {Role.RUN: _outcome(run), Role.RESUMED: _outcome(taken_up)}
    return assemble(run.spec, outcomes, references=False, definition=False)


@pytest.fixture(scope="session")
def resumptions(shared: Path, _shared_cache: None) -> Path:
    """A directory with every case of `resuming.py`: faults of saving and resuming, and the runs beside them."""
    directory = shared / "resumptions"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            command = [framework_python(), "-m", "tests.checks.resuming", str(directory)]
            root = Path(__file__).parents[2]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=400, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            (directory / "done").touch()
    return directory


def _outcome(recording: Recording) -> RunOutcome:
    return RunOutcome("completed", 0, 1.0, None, open_capture(recording.capture), None)


@pytest.fixture
def edit(tmp_path: Path) -> Editor:
    """Start an edited copy of a capture."""
    count = 0

    def start(capture: Capture | None) -> Edit:
        nonlocal count
        count += 1
        assert capture is not None
        return Edit(capture, tmp_path / f"capture-{count}")

    return start
