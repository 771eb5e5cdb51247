"""A run that is saved and resumed: its two configurations, and the script that runs them one after the other.

That the real drivers do so is shown in tests/checks/test_checkpoint_resume.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import plumbline_capture
import pytest
from plumbline_capture.settings import VARIABLE, Settings

from checks.errors import BadRequest
from checks.roles import Role, spec_of
from tests.frameworks.conftest import MakeSpec
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python
from workers.frameworks.resume import RECORDER
from workers.frameworks.trainer import RESUME
from workers.recorder_command import build_command

DRIVER = """
import json, os, signal, sys
from pathlib import Path
config = json.loads(Path(sys.argv[1]).read_text())
settings = json.loads(os.environ.get("PLUMBLINE_CAPTURE", "null"))
print(json.dumps([config["part"], os.getpid(), settings, os.environ.get("PYTHONPATH")]), flush=True)
if "makes" in config:
    Path(config["makes"]).mkdir(parents=True)
if "signal" in config:
    os.kill(os.getpid(), config["signal"])
sys.exit(config.get("code", 0))
"""


@pytest.mark.parametrize("framework", ["transformers", "trl"])
def test_the_first_process_saves_and_the_second_resumes(framework: str, make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = spec_of(Role.RESUMED, make_spec(framework, steps=5))
    launch = adapter(framework).prepare(spec, tmp_path)
    saved = tmp_path / "saved" / "checkpoint-4"
    driver, first, second = launch.command[-3:]
    assert launch.command == (framework_python(), "-u", str(RESUME), driver, first, second)
    assert (launch.checkpoints, launch.output) == ((saved,), tmp_path / "output")
    asked = adapter(framework).prepare(make_spec(framework, steps=5), tmp_path / "asked")
    assert asked.checkpoints == ()
    saving, resuming, whole = (json.loads(Path(f).read_text()) for f in (first, second, asked.command[-1]))
    assert resuming.pop("resume_from") == str(saved)
    assert "resume_from" not in saving | whole
    arguments = [config.pop("arguments") for config in (saving, resuming, whole)]
    for config in (saving, resuming, whole):
        del config["rows"]
    assert saving == resuming == whole
    differing = {"output_dir", "save_strategy", "save_steps"}
    rest = [{key: value for key, value in each.items() if key not in differing} for each in arguments]
    assert rest[0] == rest[1] == rest[2]
    assert rest[0]["max_steps"] == 5
    assert [each["save_strategy"] for each in arguments] == ["steps", "no", "no"]
    assert [each.get("save_steps") for each in arguments] == [4, 4, None]
    assert [each["output_dir"] for each in arguments[:2]] == [str(tmp_path / "saved"), str(tmp_path / "output")]


def test_the_recorder_is_asked_to_read_what_is_saved(make_spec: MakeSpec, tmp_path: Path) -> None:
    launch = adapter("transformers").prepare(spec_of(Role.RESUMED, make_spec()), tmp_path)
    command = build_command(launch, out=tmp_path / "capture", steps=(1,))
    place = command.index("--checkpoint")
    assert command[place + 1] == str(tmp_path / "saved" / "checkpoint-2")
    assert place < command.index("--")
    plain = adapter("transformers").prepare(make_spec(), tmp_path / "plain")
    assert "--checkpoint" not in build_command(plain, out=tmp_path / "capture", steps=(1,))


@pytest.mark.parametrize(("steps", "after"), [(1, 0), (3, 0), (3, 3), (3, 4)])
def test_a_resume_needs_a_step_before_and_a_step_after_it(steps: int, after: int, make_spec: MakeSpec) -> None:
    with pytest.raises(
        BadRequest, match=rf"resume_after: {after} leaves no step before or after it in a run of {steps}"
    ):
        adapter("transformers").check(make_spec(steps=steps, resume_after=after))
    adapter("transformers").check(make_spec(steps=3, resume_after=1))


def run(tmp_path: Path, first: dict[str, Any], second: dict[str, Any], **environment: str) -> Any:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    files = []
    for name, config in (("first", first), ("second", second)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({"part": name, "resume_from": str(tmp_path / "saved"), **config}))
    command = [sys.executable, str(RESUME), str(driver), *map(str, files)]
    kept = {key: value for key, value in os.environ.items() if key not in ("PLUMBLINE_CAPTURE", "PYTHONPATH")}
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=60, check=False)


def parts(done: Any) -> list[list[Any]]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_the_second_takes_the_place_of_the_script_and_alone_is_recorded(tmp_path: Path) -> None:
    settings = {"out": "/x", "steps": [1], "preload": ["/fault.py"]}
    done = run(
        tmp_path,
        {"makes": str(tmp_path / "saved")},
        {"code": 7},
        PLUMBLINE_CAPTURE=json.dumps(settings),
        PYTHONPATH=str(tmp_path),
    )
    assert (done.returncode, done.stderr) == (7, "")
    first, second = parts(done)
    assert (first[0], first[2]) == ("first", {**settings, "steps": []})
    assert (second[0], second[2]) == ("second", settings)
    assert first[3] == second[3] == str(tmp_path)
    assert first[1] != second[1]
    assert "resume: saved is saved, a new process goes on from it\n" in done.stdout


def test_the_script_knows_the_recorders_variable() -> None:
    assert RECORDER == VARIABLE


def test_without_a_recorder_none_is_made_up(tmp_path: Path) -> None:
    done = run(tmp_path, {"makes": str(tmp_path / "saved")}, {})
    assert [part[2] for part in parts(done)] == [None, None]
    assert done.returncode == 0


def test_a_first_process_that_fails_ends_the_run_as_it_ended(tmp_path: Path) -> None:
    done = run(tmp_path, {"code": 5}, {})
    assert (done.returncode, len(parts(done))) == (5, 1)
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSEGV):
        assert run(tmp_path, {"signal": int(number)}, {}).returncode == -number


def test_a_first_process_that_saves_nothing_is_said_so(tmp_path: Path) -> None:
    done = run(tmp_path, {}, {})
    assert (done.returncode, len(parts(done))) == (1, 1)
    assert done.stderr == f"resume: the first process ended without an error and without {tmp_path / 'saved'}\n"


PRELOAD = """
import sys
def install():
    print("preloaded", "plumbline_capture.install" in sys.modules, file=sys.stderr, flush=True)
"""


def test_a_process_without_steps_is_preloaded_and_not_recorded(tmp_path: Path) -> None:
    """What the first process is: the fault is in force in it, and the recorder is not even loaded."""
    site = Path(plumbline_capture.__file__).parent / "site"
    fault = tmp_path / "fault.py"
    fault.write_text(PRELOAD)
    (tmp_path / "torch.py").touch()  # a stand-in: the preload waits for the import of anything of that name
    environment = {
        **os.environ,
        "PYTHONPATH": f"{site}{os.pathsep}{tmp_path}",
        VARIABLE: Settings(out=str(tmp_path / "capture"), steps=(), preload=(str(fault),)).to_environment(),
    }
    command = [sys.executable, "-c", "import torch"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "preloaded False\n"
