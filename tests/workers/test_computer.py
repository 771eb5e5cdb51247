"""The computing process: forked from a parent that is ready, watched, cancelled, and gone with its worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.jobs.computer import Computer, ZygoteDied
from workers.jobs.documents import JudgeOrder, StoredOutcome, read_judge_order, read_spec
from workers.report.as_json import to_plain
from workers.runner import ProcessEnd

pytestmark = pytest.mark.usefixtures("cold")

CRASHED = StoredOutcome("failed", 1, 2.0, "KeyError: 'labels' (train.py:3, in main)", "bye", None, "no capture")


@pytest.fixture(scope="module")
def computer() -> Iterator[Computer]:
    made = Computer()
    yield made
    made.close()


def order(tmp_path: Path, **changes: object) -> Path:
    spec = RunSpec("transformers", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"))
    asked = JudgeOrder(to_plain(spec), "abc", ["run.completes", "step.loss"], {"run": CRASHED}, str(tmp_path), [])
    file = tmp_path / "order.json"
    file.write_text(json.dumps(to_plain(asked) | changes))
    return file


def endless(tmp_path: Path) -> Path:
    """An order that the computing process waits for ever to read."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def run(computer: Computer, tmp_path: Path, file: Path, lines: list[str], **changes: object) -> ProcessEnd:
    arguments: dict[str, object] = {
        "order": file,
        "answer": tmp_path / "answer.json",
        "log": tmp_path / "log",
        "scratch": tmp_path,
        "time_limit_s": 60.0,
        "on_line": lines.append,
        "cancelled": lambda: False,
        "on_start": lambda group: None,
    }
    return computer.run("judge", **(arguments | changes))  # type: ignore[arg-type]


def test_orders_are_answered_one_after_another_by_forks_of_one_parent(computer: Computer, tmp_path: Path) -> None:
    groups: list[int] = []
    for _ in range(2):
        lines: list[str] = []
        end = run(computer, tmp_path, order(tmp_path), lines, on_start=groups.append)
        assert (end.exit_code, end.ending, end.last_error) == (0, "completed", None)
        assert "» judging 2 checks" in lines
        assert any(line.startswith("fail         run.completes: ") for line in lines)
        answer = json.loads((tmp_path / "answer.json").read_text())
        assert [verdict["status"] for verdict in answer["verdicts"]] == ["fail", "inconclusive"]
        assert answer["wanted"] is None
        (tmp_path / "answer.json").unlink()
    assert groups[0] != groups[1]


def test_what_breaks_in_the_computing_process_is_its_error(computer: Computer, tmp_path: Path) -> None:
    end = run(computer, tmp_path, order(tmp_path, checks=["no.such"]), [])
    assert (end.exit_code, end.ending) == (1, "failed")
    assert end.last_error is not None
    assert "BadRequest: checks: there is no check 'no.such'" in end.last_error


def test_a_cancelled_computation_ends_at_once(computer: Computer, tmp_path: Path) -> None:
    groups: list[int] = []
    begun = time.monotonic()
    end = run(computer, tmp_path, endless(tmp_path), [], cancelled=lambda: True, on_start=groups.append)
    assert (end.ending, end.signal) == ("cancelled", signal.SIGKILL)
    assert time.monotonic() - begun < 30
    assert not psutil.pid_exists(groups[0])


def test_a_computation_over_its_time_is_ended(computer: Computer, tmp_path: Path) -> None:
    assert run(computer, tmp_path, endless(tmp_path), [], time_limit_s=0.0).ending == "timed_out"


def test_a_killed_parent_is_said_and_replaced(computer: Computer, tmp_path: Path) -> None:
    def kill(child: int) -> None:
        psutil.Process(child).parent().kill()
        os.killpg(child, signal.SIGKILL)

    with pytest.raises(ZygoteDied, match="may have been killed for memory"):
        run(computer, tmp_path, order(tmp_path), [], on_start=kill)
    assert run(computer, tmp_path, order(tmp_path), []).ending == "completed"


def test_the_computation_ends_with_a_killed_worker(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from workers.jobs.computer import Computer
there = Path({str(tmp_path)!r})
Computer().run("judge", order=there / "fifo", answer=there / "answer", log=there / "log", scratch=there,
    time_limit_s=60, on_line=print, cancelled=lambda: False,
    on_start=lambda group: print(group, flush=True))
"""
    endless(tmp_path)
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    group = int(worker.stdout.readline())
    zygote = psutil.Process(group).parent()
    assert zygote is not None
    worker.kill()
    worker.wait()
    end = time.monotonic() + 20
    while (psutil.pid_exists(group) or zygote.is_running()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not psutil.pid_exists(group)
    assert not zygote.is_running()


def test_an_order_reads_back_as_it_was_written(tmp_path: Path) -> None:
    document = json.loads(order(tmp_path).read_text())
    read = read_judge_order(document)
    assert read.runs == {"run": CRASHED}
    spec = read_spec(document["spec"])
    assert spec == RunSpec("transformers", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"))
