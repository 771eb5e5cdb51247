"""The launcher: exit codes, signals, requests that cannot be run, and what processes inherit."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from plumbline_capture.cli import main

from tests.capture.running import PLAIN_LM, Recorded, run_plain, run_recorded, start_recorded


def test_the_exit_code_is_the_commands_and_no_step_is_said_to_be_missing(tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path / "capture", sys.executable, "-c", "import sys; print('hello'); sys.exit(7)")
    assert (recorded.code, recorded.stdout) == (7, "hello\n")
    manifest = recorded.manifest
    assert (manifest["format"], manifest["version"], manifest["exit_code"]) == ("plumbline-capture", 1, 7)
    assert manifest["command"] == [sys.executable, "-c", "import sys; print('hello'); sys.exit(7)"]
    assert [note["what"] for note in manifest["missing"]] == ["step"]
    assert "no optimizer step" in manifest["missing"][0]["why"]
    assert (manifest["world_size"], manifest["tensors"], manifest["files"]) == (0, [], [])


def test_a_command_killed_by_a_signal_gives_128_plus_its_number(tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path / "capture", "sh", "-c", "kill -9 $$")
    assert (recorded.code, recorded.manifest["exit_code"]) == (137, -9)


def test_a_command_that_is_not_there_gives_127_and_one_sentence(tmp_path: Path) -> None:
    recorded = run_recorded(tmp_path / "capture", "no-such-trainer")
    assert (recorded.code, recorded.manifest["exit_code"]) == (127, 127)
    assert recorded.stderr == "plumbline-capture: no-such-trainer: no such command; check the name and PATH.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--out", "new"], "CMD: none given after --"),
        (["run", "--", "true"], "--out"),
        (["run", "--out", "full", "--", "true"], "--out: full exists and is not an empty directory"),
        (["run", "--out", "full/file", "--", "true"], "--out: full/file exists and is not an empty directory"),
        (["run", "--out", "new", "--steps", "0", "--", "true"], "--steps: '0' is no list of step numbers"),
        (["run", "--out", "new", "--steps", "1,", "--", "true"], "--steps: '1,' is no list of step numbers"),
        (["run", "--out", "new", "--modules", "(", "--", "true"], "--modules: '(' is no regular expression"),
        (["run", "--out", "new", "--full-parameters", "[", "--", "true"], "--full-parameters: '['"),
        (["run", "--out", "new", "--preload", "gone.py", "--", "true"], "--preload: gone.py is not a file"),
        (["record", "--out", "new", "--", "true"], "invalid choice: 'record'"),
    ],
)
def test_a_request_that_cannot_be_run_ends_with_3_and_says_why(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 3
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_sigterm_reaches_a_hanging_command_and_what_it_recorded_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "capture"
    process = start_recorded(out, "sh", "-c", f"{sys.executable} {PLAIN_LM} hang; true")
    assert process.stdout is not None
    digest = process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    recorded = Recorded(process.returncode, digest, "", out)
    assert recorded.manifest["exit_code"] == -signal.SIGTERM
    assert [record["step"] for record in recorded.manifest["ranks"][0]["steps"]] == [1]
    assert {"rank": 0, "step": 3, "what": "step", "why": "the command ended before this step was recorded"} in (
        recorded.manifest["missing"]
    )


def test_a_command_that_takes_none_of_the_asked_steps_is_not_said_to_take_none(tmp_path: Path) -> None:
    out = tmp_path / "capture"
    command = ["--steps", "30", "--", sys.executable, str(PLAIN_LM), "one-step"]
    main(["run", "--out", str(out), *command])
    assert Recorded(0, "", "", out).manifest["missing"] == [
        {"rank": 0, "step": 30, "what": "step", "why": "the command ended after 1 optimizer step"}
    ]


def test_a_command_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    process = start_recorded(tmp_path / "capture", sys.executable, "-c", deaf)
    assert process.stdout is not None
    assert process.stdout.readline() == "deaf\n"
    started = time.monotonic()
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGKILL
    assert time.monotonic() - started >= 5.0


def test_a_command_does_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    waiting = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = start_recorded(tmp_path / "capture", sys.executable, "-c", waiting)
    assert process.stdout is not None
    command = int(process.stdout.readline())
    process.kill()
    process.wait(timeout=60)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{command}/cmdline").exists() and Path(f"/proc/{command}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_shadowed_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('site', __name__)\n")
    command = ("env", f"PYTHONPATH={tmp_path}", sys.executable, "-m", "plumbline_capture", "run", "--out")
    show = "import sys; print(sys.modules['sitecustomize'].__file__, 'plumbline_capture' in sys.modules)"
    done = run_plain(*command, str(tmp_path / "capture"), "--", sys.executable, "-c", show)
    at_the_launcher = at_the_command = "site sitecustomize\n"
    assert done.stdout == f"{at_the_launcher}{at_the_command}{tmp_path}/sitecustomize.py True\n"


@pytest.fixture(scope="module")
def one_step_twice(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("twice") / "capture"
    train = f"{sys.executable} {PLAIN_LM} one-step"
    return run_recorded(out, "sh", "-c", f"{train} && {train}", options=("--steps", "1"))


def test_of_two_processes_of_one_rank_the_first_is_recorded_and_the_second_noted(one_step_twice: Recorded) -> None:
    recorded = one_step_twice
    first, second = recorded.stdout.split()
    assert first == second
    assert recorded.manifest["world_size"] == 1
    whys = [note["why"] for note in recorded.manifest["missing"] if note["what"].startswith("process ")]
    assert whys == ["another process recorded rank 0 before it"]
    assert len(recorded.entries(kind="batch")) == 1


def test_the_second_backward_of_one_forward_is_a_micro_batch_without_a_batch(one_step_twice: Recorded) -> None:
    first, second = one_step_twice.step(1)["micro_batches"]
    assert (first["loss_source"], second["loss_source"]) == ("cross_entropy", None)
    assert second["backward"] > 0
    assert "target of micro-batch 1" in [note["what"] for note in one_step_twice.manifest["missing"]]
