"""The command: its answers to bad requests, its lists, its signals, and one whole validation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from checks.faults import FAULTS
from checks.spec import RunSpec
from workers import cli
from workers.request import DEFAULT_TIME_LIMIT_S
from workers.settings import setting_names

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "cli.md"
VALIDATE = ["validate", "--framework", "transformers", "--model", "tiny:qwen3", "--data", "gsm8k_sample", "--local"]


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(arguments)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: COMMAND"),
        (["validat"], "invalid choice: 'validat'"),
        (["validate"], "required: --framework, --model, --data"),
        ([*VALIDATE, "--time-limit", "0"], "'0' is not a number above 0"),
        ([*VALIDATE, "--time-limit", "inf"], "'inf' is not a number above 0"),
        ([*VALIDATE, "--memory-limit", "much"], "'much' is not a number above 0"),
        ([*VALIDATE, "--checks", "step.loss,"], "'step.loss,' has an empty name"),
        ([*VALIDATE, "--set", "seqlen=3"], "set: there is no setting 'seqlen'; did you mean seq_len"),
        ([*VALIDATE, "--set", "batch=0"], "batch: 0 is out of bounds; set it to 1 or more"),
        ([*VALIDATE, "--inject", "rmsnorm"], "inject: there is no fault 'rmsnorm'; did you mean rmsnorm-eps"),
        ([*VALIDATE, "--checks", "step.los"], "checks: there is no check 'step.los'; did you mean step.loss"),
        ([*VALIDATE, "--framework", "tlr"], "framework: 'tlr' is not known; use trl"),
        ([*VALIDATE, "--model", "/no/such"], "model: '/no/such' does not exist"),
        (["checks", "show", "step.los"], "checks: there is no check 'step.los'; did you mean step.loss"),
        (["compare", "/no/a", "/no/b"], "/no/a: holds no manifest.json, so it is not a capture"),
        (["compare", "/no/a"], "required: CAPTURE"),
        ([*VALIDATE, "--local", "--out", __file__], "cannot be made a directory (File exists); name a new directory"),
    ],
)
def test_a_bad_request_is_code_3_and_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = _run(capsys, *arguments)
    assert code == 3
    assert sentence in error
    assert out == ""
    assert error.count("\n") == 1


def test_without_local_it_says_that_no_server_is_configured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLUMBLINE_URL", raising=False)
    code, _, error = _run(capsys, *VALIDATE[:-1])
    assert code == 3
    assert error == (
        "plumbline: local: no server is configured (PLUMBLINE_URL is not set); add --local to run on this machine.\n"
    )
    monkeypatch.setenv("PLUMBLINE_URL", "http://plumbline.example")
    code, _, error = _run(capsys, *VALIDATE[:-1])
    assert (code, error.split(":")[1]) == (3, " PLUMBLINE_URL")


def test_an_unwritable_report_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for option in ("json", "junit"):
        code, _, error = _run(
            capsys, *VALIDATE, "--out", str(tmp_path / "out"), f"--{option}", str(tmp_path / "no" / "f")
        )
        assert code == 3
        assert error.startswith(f"plumbline: {option}: ")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_request_leaves_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml"), "--out", str(tmp_path / "out")]
    assert _run(capsys, *VALIDATE, *files, "--set", "steps=0")[0] == 3
    assert list(tmp_path.iterdir()) == []


def test_the_faults_are_listed_with_check_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "faults")
    assert code == 0
    for each in FAULTS:
        assert f"{each.slug}  seen by {each.check}\n" in out
        assert f"    as in {each.url}\n" in out
    assert "the LoRA adapter of one module does not train (with lora=true)\n" in out


def test_the_checks_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys, "checks") == _run(capsys, "checks", "list")
    code, out, _ = _run(capsys, "checks")
    assert code == 0
    assert re.search(r"^●\s+step\.denominator\s+the loss is divided by", out, re.MULTILINE)
    assert re.search(r"^\s+step\.lengths\s+log-probabilities are right", out, re.MULTILINE)
    code, out, _ = _run(capsys, "checks", "show", "run.completes")
    assert code == 0
    assert out.startswith("run.completes\n")
    assert "Cannot see:" in out


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"plumbline \d+\.\d+\.\d+\n", _run(capsys, "--version")[1])


def test_a_fault_of_plumbline_itself_is_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.commands, "list_faults", lambda: 1 / 0)
    code, _, error = _run(capsys, "faults")
    assert code == 2
    assert "ZeroDivisionError" in error
    assert "this is a fault of Plumbline" in error


def test_an_interrupt_is_code_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.commands, "list_faults", interrupt)
    assert _run(capsys, "faults")[0] == 130


def test_limits_are_handed_on_in_seconds_and_bytes() -> None:
    options = cli.build_parser().parse_args([*VALIDATE, "--memory-limit", "1.5"])
    assert options.time_limit == DEFAULT_TIME_LIMIT_S == 600.0
    assert int(options.memory_limit * cli.BYTES_IN_GB) == 1_500_000_000


def test_every_setting_and_option_is_documented_with_its_default() -> None:
    text = DOCUMENTATION.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.MULTILINE))
    assert tuple(rows) == setting_names()
    defaults = {field.name: field.default for field in fields(RunSpec)}
    for name, shown in rows.items():
        default = defaults[name]
        expected = ",".join(default) or "none" if isinstance(default, tuple) else str(default)
        assert shown == (expected.lower() if isinstance(default, bool | None) else expected), name
    parser = cli.build_parser().parse_args(VALIDATE)
    assert "| `-- COMMAND…` |" in text
    for option in vars(parser).keys() - {"run", "settings", "command"}:
        assert f"`--{option.replace('_', '-')}" in text, option


def test_a_closed_pipe_ends_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "workers.cli", "faults"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_sigterm_leaves_through_every_finally(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.commands, "list_faults", lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert _run(capsys, "faults")[0] == 143
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("cold")
def test_an_interrupt_ends_the_frameworks_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable,
        "-m",
        "workers.cli",
        *VALIDATE,
        "--out",
        str(tmp_path / "out"),
        "--json",
        str(tmp_path / "j"),
    ]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        children = _wait_for_framework(process.pid)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert not (tmp_path / "r.json").exists()


def _wait_for_framework(pid: int) -> list[psutil.Process]:
    """The recorder's launcher and the framework below it."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        if len(children) >= 2:
            return children
        time.sleep(0.1)
    raise AssertionError("the framework was not started")


def test_a_whole_validation_prints_its_table_and_writes_both_reports(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml"), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
    command = [sys.executable, "-m", "workers.cli", *VALIDATE, *files, "--checks", "run.completes,step.denominator"]
    command += ["--set", "steps=1", "--set", "accumulation=1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "framework run: transformers" in done.stderr
    assert len(re.findall(r"● pass", done.stdout)) == 2
    assert re.search(r"^2 pass$", done.stdout, re.MULTILINE)
    assert re.search(r"dearest phase: \w", done.stdout)
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["exit_code"], document["spec"]["steps"]) == (0, 1)
    assert [(v["check"], v["status"]) for v in document["verdicts"]] == [
        *(("run.completes", "pass"), ("step.denominator", "pass")),
    ]
    assert Path(document["runs"][0]["capture"], "manifest.json").is_file()
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("tests") == "2"
