"""A run ends by itself or at a limit, says which, and leaves log, capture and no process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from checks.errors import BadRequest
from workers.frameworks.base import Launch
from workers.recorder_command import build_command
from workers.runner import FrameworkRun, _decode, run_framework


def _launch(code: str, directory: Path, *, environment: dict[str, str] | None = None) -> Launch:
    return Launch(
        command=(sys.executable, "-c", code),
        environment=environment or {},
        full_parameters=None,
        output=directory,
    )


def _run(code: str, directory: Path, **options: Any) -> FrameworkRun:
    settings: dict[str, Any] = {
        "time_limit_s": 60.0,
        "memory_limit_bytes": None,
        "on_line": lambda line: None,
        "cancelled": lambda: False,
        "steps": (1,),
        **options,
    }
    return run_framework(
        _launch(code, directory),
        out=directory / "capture",
        scratch=directory / "scratch",
        log=directory / "logs" / "run.log",
        **settings,
    )


def _read_pid_and_check_that_it_is_gone(directory: Path) -> bool:
    pid = int((directory / "scratch" / "pid").read_text())
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


SLEEP = "import os, time; open('pid', 'w').write(str(os.getpid())); print('ready', flush=True); time.sleep(60)"


def test_a_run_that_ends_is_completed_with_log_and_capture(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys; print('first'); print('second', file=sys.stderr); print('no line end', end='')"
    run = _run(code, tmp_path, on_line=lines.append)
    assert (run.ending, run.exit_code, run.signal, run.last_error) == ("completed", 0, None, None)
    assert sorted(lines) == ["first", "no line end", "second"]
    assert sorted(run.log.read_text().replace("end", "end\n").split("\n")) == ["", "first", "no line end", "second"]
    assert run.capture == tmp_path / "capture"
    assert json.loads((run.capture / "manifest.json").read_text())["exit_code"] == 0
    assert run.peak_memory_bytes > 5_000_000
    assert 0 < run.elapsed_s < 60


def test_a_run_that_raises_is_failed_with_its_error_and_place(tmp_path: Path) -> None:
    run = _run("def step(): raise KeyError('labels')\nstep()", tmp_path)
    assert (run.ending, run.exit_code, run.signal) == ("failed", 1, None)
    assert run.last_error == "KeyError: 'labels' (<string>:1, in step)"


def test_an_exit_code_is_passed_on(tmp_path: Path) -> None:
    run = _run("raise SystemExit(7)", tmp_path)
    assert (run.ending, run.exit_code, run.signal) == ("failed", 7, None)


def test_a_signal_is_named(tmp_path: Path) -> None:
    run = _run("import os; os.kill(os.getpid(), 11)", tmp_path)
    assert (run.ending, run.exit_code, run.signal) == ("failed", 128 + 11, 11)


def test_a_framework_that_says_it_ran_out_of_memory_is_believed(tmp_path: Path) -> None:
    run = _run("raise MemoryError('no room')", tmp_path)
    assert (run.ending, run.exit_code) == ("out_of_memory", 1)


def test_a_hang_without_output_ends_at_the_time_limit(tmp_path: Path) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    run = _run(code, tmp_path, time_limit_s=3.0)
    assert run.ending == "timed_out"
    assert 3.0 <= run.elapsed_s < 30
    assert run.log.read_text() == ""
    assert run.capture is not None
    assert _read_pid_and_check_that_it_is_gone(tmp_path)


def test_endless_output_does_not_hold_up_the_time_limit(tmp_path: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: print('x' * 1000)"
    run = _run(code, tmp_path, time_limit_s=2.0)
    assert run.ending == "timed_out"
    assert run.elapsed_s < 30


def test_a_run_over_its_memory_limit_is_ended(tmp_path: Path) -> None:
    code = (
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nblocks = []\n"
        "while True:\n    blocks.append(b'x' * 10_000_000)\n    time.sleep(0.01)\n"
    )
    run = _run(code, tmp_path, memory_limit_bytes=200_000_000)
    assert run.ending == "out_of_memory"
    assert run.peak_memory_bytes > 200_000_000
    assert _read_pid_and_check_that_it_is_gone(tmp_path)


def test_a_run_within_its_memory_limit_is_left_alone(tmp_path: Path) -> None:
    assert _run("print('small')", tmp_path, memory_limit_bytes=2_000_000_000).ending == "completed"


def test_a_cancelled_run_is_ended(tmp_path: Path) -> None:
    seen: list[str] = []
    run = _run(SLEEP, tmp_path, on_line=seen.append, cancelled=lambda: "ready" in seen)
    assert run.ending == "cancelled"
    assert run.elapsed_s < 30
    assert _read_pid_and_check_that_it_is_gone(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_when_the_caller_is_interrupted(tmp_path: Path, error: type[BaseException]) -> None:
    def raise_it(line: str) -> None:
        raise error

    with pytest.raises(error):
        _run(SLEEP, tmp_path, on_line=raise_it)
    assert _read_pid_and_check_that_it_is_gone(tmp_path)


def test_children_of_a_run_that_has_ended_are_ended_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "open('pid', 'w').write(str(child.pid))\n"
    )
    started = time.monotonic()
    run = _run(code, tmp_path)
    assert (run.ending, run.exit_code) == ("completed", 0)
    assert time.monotonic() - started < 40
    assert _read_pid_and_check_that_it_is_gone(tmp_path)


def test_the_run_sees_no_secret_and_its_own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    code = "import json, os; print(json.dumps(dict(os.environ))); print(os.getcwd())"
    run = _run(f"{code}; print(os.path.realpath(os.environ['TMPDIR']))", tmp_path)
    text, directory, temporary = run.log.read_text().splitlines()
    environment = json.loads(text)
    assert "DATABASE_URL" not in environment
    assert "HF_TOKEN" not in environment
    assert Path(directory) == Path(temporary) == (tmp_path / "scratch").resolve()


def test_an_existing_out_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    with pytest.raises(BadRequest, match=r"^out: .*capture exists; name a directory that does not\.$"):
        _run("print('never')", tmp_path)
    assert not (tmp_path / "logs").exists()


def test_a_missing_preload_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"^preload: .*no\.py is not a file"):
        _run("print('never')", tmp_path, preload=(tmp_path / "no.py",))


def test_a_very_long_line_is_handed_on_in_pieces(tmp_path: Path) -> None:
    lines: list[str] = []
    run = _run("print('x' * 300_000)", tmp_path, on_line=lines.append)
    assert len(lines) > 1
    assert "".join(lines) == "x" * 300_000
    assert run.log.stat().st_size == 300_001


def test_the_command_has_the_recorder_in_front(tmp_path: Path) -> None:
    launch = Launch(command=("train", "--x"), environment={}, full_parameters="lora_", output=tmp_path)
    build: Callable[..., list[str]] = build_command
    assert build(launch, out=Path("c"), steps=(1, 3)) == [
        *(sys.executable, "-m", "plumbline_capture", "run", "--out", "c", "--steps", "1,3"),
        *("--full-parameters", "lora_", "--", "train", "--x"),
    ]
    command = build(launch, out=Path("c"), steps=(1,), full=True, modules=".+", preload=(Path("f.py"), Path("g.py")))
    assert command[5:] == [
        *("c", "--steps", "1", "--full", "--modules", ".+", "--full-parameters", "lora_"),
        *("--preload", "f.py", "--preload", "g.py", "--", "train", "--x"),
    ]


def test_a_line_is_what_a_terminal_shows_of_it() -> None:
    assert _decode(b"0 %\r50 %\r100 %\r") == "100 %"
    assert _decode("fünf".encode()) == "fünf"
