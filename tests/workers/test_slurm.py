"""Runs as jobs of a cluster: the script, the job on its way, and each end that it can have.

The commands are stand-ins (tests/slurm) that run the jobs as processes of this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadRequest
from tests.slurm import cluster
from workers import cli
from workers.frameworks.base import Launch
from workers.frameworks.processes import build_launch
from workers.launchers import queue, slurm
from workers.launchers.queue import MayStillRun, SlurmError
from workers.launchers.script import HERE, Size, check_option, choose_size, write_script
from workers.launchers.slurm import Slurm
from workers.runner import ProcessEnd
from workers.sandbox import list_tagged

PRINT = [sys.executable, "-S", "-c", "print('step 1'); print('step 2', flush=True)"]
SLEEP = [sys.executable, "-S", "-c", "import time; print('begun', flush=True); time.sleep(60)"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster with nothing on it."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    cluster.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(directory))
    return directory


def supervise(
    directory: Path,
    command: list[str],
    *,
    lines: list[str] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    time_limit_s: float = 60.0,
    **changes: Any,
) -> ProcessEnd:
    cwd = directory / "scratch of 'a' run"
    cwd.mkdir(exist_ok=True)
    return Slurm(poll_s=0.1, **changes).supervise(
        command,
        processes=1,
        cwd=cwd,
        environment={"PATH": os.environ["PATH"], "PLUMBLINE_RUN": str(directory)},
        log=directory / "logs" / "100% run.log",
        time_limit_s=time_limit_s,
        memory_limit_bytes=None,
        on_line=(lines if lines is not None else []).append,
        cancelled=cancelled,
    )


def script(command: list[str], **changes: Any) -> str:
    fields: dict[str, Any] = {
        "size": Size(1, 1, 0),
        "options": (),
        "environment": {},
        "time_limit_s": 600.0,
        "memory_limit_bytes": None,
        "exit_file": Path("/x/exit_code"),
    }
    return write_script(command, **(fields | changes))


def test_the_script_says_what_the_run_takes() -> None:
    text = script(
        ["python", "-m", "plumbline_capture"],
        size=Size(2, 8, 8),
        options=("--partition=gpu",),
        environment={"HF_HUB_OFFLINE": "1"},
        memory_limit_bytes=3 * 2**30,
    )
    assert text.splitlines()[:12] == [
        "#!/bin/bash",
        "#SBATCH --job-name=plumbline",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=12",
        "#SBATCH --no-requeue",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --mem=1536M",
        "#SBATCH --export=NONE",
        "#SBATCH --partition=gpu",
        "set -u",
        "export HF_HUB_OFFLINE=1",
    ]
    assert text.splitlines()[13] == "python -m plumbline_capture"
    assert "--export=NONE" not in script(["x"], options=("--export=NCCL_SOCKET_IFNAME",))
    assert "gpus" not in script(["x"])


def test_nothing_in_a_field_is_read_by_the_shell(tmp_path: Path) -> None:
    strange = "a 'b' \"c\" $HOME `id` $(id) \\ ; & | \n#SBATCH --uid=0"
    exit_file = tmp_path / "it's $(here)" / "exit_code"
    exit_file.parent.mkdir()
    command = [
        sys.executable,
        "-S",
        "-c",
        "import os, sys; print([sys.argv[1], os.environ['V']]); sys.exit(7)",
        strange,
    ]
    text = script(command, environment={"V": strange}, exit_file=exit_file)
    assert "#SBATCH --uid=0" not in text.split("set -u")[0]
    ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (7, f"{[strange, strange]}\n")
    assert exit_file.read_text() == "7\n"
    with pytest.raises(ValueError, match="is no name of a variable"):
        script(command, environment={"A;B": "1"})


@pytest.mark.parametrize(
    "text", ["--partition=gpu", "--exclusive", "--account=a_b-1", "--constraint=a100|h100", "--gres=gpu:h200:8"]
)
def test_an_option_for_sbatch_is_passed_on(text: str) -> None:
    assert check_option(text) == text


@pytest.mark.parametrize(
    "text",
    ["partition=gpu", "-p gpu", "--a=b c", "--a=b\n#SBATCH --uid=0", "--a=$(id)", "--a='b'", "--a=b#c", "--a=", "--A=b",
     "--a=é", "--a;b", ""],
)  # fmt: skip
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no option that is passed on"):
        check_option(text)


@pytest.mark.parametrize("text", ["--output=x", "--nodes=4", "--time=1", "--array=1-9", "--wrap=id", "--chdir=/"])
def test_an_option_that_the_run_decides_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is what the run decides"):
        check_option(text)


@pytest.mark.parametrize(
    ("processes", "gpus_per_node", "size"),
    [(1, 0, Size(1, 1, 0)), (8, 0, Size(1, 8, 0)), (1, 8, Size(1, 1, 1)), (8, 8, Size(1, 8, 8)),
     (16, 8, Size(2, 8, 8)), (12, 8, Size(2, 6, 6))],
)  # fmt: skip
def test_a_process_takes_a_gpu_and_nodes_are_filled_alike(processes: int, gpus_per_node: int, size: Size) -> None:
    assert choose_size(processes, gpus_per_node=gpus_per_node) == size


def test_processes_that_nodes_cannot_share_alike_are_refused() -> None:
    with pytest.raises(BadRequest, match="9 processes are not divided by 2 nodes"):
        choose_size(9, gpus_per_node=8)


def launch(processes: int) -> Launch:
    command = build_launch(Path("train.py"), Path("config.json"), processes=processes)
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "GLOO_SOCKET_IFNAME": "lo", "A": "1"}
    return Launch(command=command, environment=environment, full_parameters=None, output=Path("out"))


def test_on_one_node_the_command_is_the_same_through_srun() -> None:
    found = Slurm().rewrite(launch(2), processes=2)
    assert found.command[:2] == ("srun", "--export=ALL")
    assert found.command[5:] == launch(2).command
    assert found.environment == {"GLOO_SOCKET_IFNAME": "lo", "A": "1"}


def test_over_nodes_torchrun_meets_at_the_first_one() -> None:
    found = Slurm(gpus_per_node=2).rewrite(launch(4), processes=4)
    assert found.command[2:4] == ("--nodes=2", "--ntasks-per-node=1")
    assert "--nproc-per-node=2" in found.command
    assert {"--nnodes=2", f"--rdzv-endpoint={HERE}"} <= set(found.command)
    assert not {"--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=4"} & set(found.command)
    assert found.environment == {"A": "1"}
    text = script(list(found.command), size=Size(2, 2, 2))
    assert 'PLUMBLINE_ENDPOINT="$(hostname):$((20000 + SLURM_JOB_ID % 20000))"' in text
    assert '--rdzv-endpoint="$PLUMBLINE_ENDPOINT"' in text.replace("'--rdzv-endpoint='", "--rdzv-endpoint=")


def test_a_run_that_torchrun_does_not_start_stays_on_one_node() -> None:
    alone = Launch(command=("python", "train.py"), environment={}, full_parameters=None, output=Path("out"))
    with pytest.raises(BadRequest, match="4 processes do not fit on a node of 2"):
        Slurm(gpus_per_node=2).rewrite(alone, processes=4)


def test_a_job_is_followed_to_its_end(state: Path, tmp_path: Path) -> None:
    cluster.set_modes(pending_s=0.5, deaf=1)
    lines: list[str] = []
    end = supervise(tmp_path, PRINT, lines=lines, options=("--partition=debug",))
    assert (end.ending, end.exit_code, end.signal, end.last_error) == ("completed", 0, None, None)
    assert end.peak_memory_bytes == 2 * 2**20
    assert lines[-2:] == ["step 1", "step 2"]
    assert lines[:2] == ["Slurm does not answer; trying again", "job 1000 waits: Resources"]
    assert (tmp_path / "logs" / "100% run.log").read_text() == "step 1\nstep 2\n"
    job = json.loads((state / "1000.json").read_text())
    assert job["options"]["--partition"] == "debug"


def test_a_job_sees_no_variable_but_the_runs_own(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_TOKEN", "secret")
    lines: list[str] = []
    supervise(tmp_path, [sys.executable, "-S", "-c", "import os; print(sorted(os.environ))"], lines=lines)
    assert "PLUMBLINE_TOKEN" not in lines[-1]
    assert "'PLUMBLINE_RUN'" in lines[-1]


@pytest.mark.parametrize("accounting", [True, False])
def test_a_run_that_fails_is_its_own_failure(state: Path, tmp_path: Path, accounting: bool) -> None:
    cluster.set_modes(accounting=accounting)
    end = supervise(tmp_path, [sys.executable, "-S", "-c", "raise RuntimeError('no such step')"])
    assert (end.ending, end.exit_code) == ("failed", 1)
    assert "RuntimeError: no such step" in str(end.last_error)


def test_without_accounting_a_good_end_is_one(state: Path, tmp_path: Path) -> None:
    cluster.set_modes(accounting=False)
    end = supervise(tmp_path, PRINT)
    assert (end.ending, end.exit_code, end.peak_memory_bytes) == ("completed", 0, None)


@pytest.mark.parametrize("state_of_job", ["NODE_FAIL", "PREEMPTED", "CANCELLED"])
def test_an_end_that_the_cluster_made_is_no_verdict(state: Path, tmp_path: Path, state_of_job: str) -> None:
    cluster.set_modes(end_as=state_of_job)
    with pytest.raises(SlurmError, match=f"job 1000 ended as {state_of_job}, which says nothing of the run"):
        supervise(tmp_path, SLEEP)


def test_a_job_that_vanishes_without_a_trace_is_no_verdict(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ACCOUNTING_S", 0.2)
    cluster.set_modes(end_as="NODE_FAIL", accounting=False)
    with pytest.raises(SlurmError, match="left no exit code and no record"):
        supervise(tmp_path, SLEEP)


@pytest.mark.parametrize(("state_of_job", "ending"), [("TIMEOUT", "timed_out"), ("OUT_OF_MEMORY", "out_of_memory")])
def test_a_limit_of_the_cluster_is_the_runs_end(state: Path, tmp_path: Path, state_of_job: str, ending: str) -> None:
    cluster.set_modes(end_as=state_of_job)
    end = supervise(tmp_path, SLEEP)
    assert (end.ending, end.exit_code) == (ending, 137)


def test_the_runs_own_limit_ends_the_job(state: Path, tmp_path: Path) -> None:
    end = supervise(tmp_path, SLEEP, time_limit_s=0.5)
    assert end.ending == "timed_out"
    assert not list_tagged(str(tmp_path))


def test_waiting_counts_for_no_limit(state: Path, tmp_path: Path) -> None:
    cluster.set_modes(pending_s=1.0)
    assert supervise(tmp_path, PRINT, time_limit_s=0.8).ending == "completed"


def test_a_cancelled_run_leaves_nothing(state: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    lines: list[str] = []

    def stop_once_begun() -> None:
        wait_for(lambda: "begun" in lines)
        stop.set()

    threading.Thread(target=stop_once_begun).start()
    end = supervise(tmp_path, SLEEP, lines=lines, cancelled=stop.is_set)
    assert end.ending == "cancelled"
    assert json.loads((state / "1000.json").read_text())["state"] == "CANCELLED"
    assert not list_tagged(str(tmp_path))


def test_an_interrupt_cancels_the_job_too(state: Path, tmp_path: Path) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(tmp_path, SLEEP, cancelled=interrupt)
    assert json.loads((state / "1000.json").read_text())["state"] == "CANCELLED"


def test_a_job_that_may_not_be_cancelled_is_told_with_what_ends_it(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SILENCE_S", 0.3)
    left = "job {} may still run (scancel fails: scancel: error: Kill job error on job id {}: Access/permission denied)"
    modes: dict[str, Any] = {"undying": "Access/permission denied"}

    def interrupt() -> bool:
        raise KeyboardInterrupt

    cluster.set_modes(**modes)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        supervise(tmp_path, SLEEP, cancelled=interrupt)
    assert interrupted.value.__notes__ == [f"{left.format(1000, 1000)}; end it with scancel 1000"]
    with pytest.raises(MayStillRun) as refused:
        supervise(tmp_path, SLEEP, time_limit_s=0.2)
    assert str(refused.value) == f"{left.format(1001, 1001)}; end it with scancel 1001"
    cluster.set_modes(**modes, deaf=8)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller") as silent:
        supervise(tmp_path, SLEEP)
    assert silent.value.__notes__ == [f"{left.format(1002, 1002)}; end it with scancel 1002"]
    cluster.set_modes()
    for job in ("1000", "1001", "1002"):
        subprocess.run(["scancel", job], check=True)


def test_what_sbatch_refuses_is_said(state: Path, tmp_path: Path) -> None:
    cluster.set_modes(refuse="Batch job submission failed: Invalid account or account/partition combination")
    with pytest.raises(SlurmError, match="Invalid account or account/partition combination"):
        supervise(tmp_path, PRINT)


def test_a_slurm_that_stays_away_gives_up_and_cancels(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SILENCE_S", 0.3)
    cluster.set_modes(deaf=8)
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        supervise(tmp_path, SLEEP)
    assert json.loads((state / "1000.json").read_text())["state"] == "CANCELLED"


def test_a_machine_without_slurm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="there is no sbatch on the path of this machine"):
        supervise(tmp_path, PRINT)


@pytest.mark.parametrize("code", ["1:0", "0:9", "0:0"])
def test_the_worse_counts_where_accounting_and_the_script_differ(state: Path, tmp_path: Path, code: str) -> None:
    cluster.set_modes(accounted=f"FAILED|{code}")
    end = supervise(tmp_path, PRINT)
    assert (end.ending, end.exit_code) == ("failed", 137 if code == "0:9" else 1)
    assert end.last_error == (
        f"accounting has job 1000 as FAILED, exit code {code}, though the command in it ended with exit code 0"
    )


def write_command(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """A command of Slurm that is this script alone."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("sbatch", lambda: queue.submit(Path("job.sh"), output=Path("log"), cwd=Path())),
        ("squeue", lambda: queue.look("7")),
        ("sacct", lambda: queue.read_end("7")),
        ("scancel", lambda: queue.cancel("7")),
    ],
)
def test_a_message_in_another_encoding_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], Any]
) -> None:
    write_command(tmp_path / "bin", monkeypatch, name, r"printf 'nicht m\366glich\n' | tee /dev/stderr; exit 1")
    with pytest.raises(SlurmError, match="nicht m\N{REPLACEMENT CHARACTER}glich"):
        call()


@pytest.mark.parametrize(
    ("amounts", "bytes_of_peak"),
    [
        (["", "2048K", "1.5M"], 2 * 2**20),
        (["", "1.2.3K", "1K"], 2**10),
        (["", "1.2.3K"], None),
        (["", "0"], 0),
        (["16?"], None),
    ],
)
def test_an_amount_that_cannot_be_read_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amounts: list[str], bytes_of_peak: int | None
) -> None:
    rows = [f"echo '{job}|COMPLETED|0:0|{each}'" for job, each in zip(("7", "7.batch", "7.0"), amounts, strict=False)]
    write_command(tmp_path / "bin", monkeypatch, "sacct", "\n".join(rows))
    assert queue.read_end("7") == queue.Ended("COMPLETED", 0, 0, bytes_of_peak)


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--launcher", "slurm"], "out: the nodes of a cluster see no temporary directory"),
        (["--sbatch-option=--partition=gpu"], "sbatch-option: is for a cluster; add --launcher slurm."),
        (["--gpus-per-node", "2"], "gpus-per-node: is for a cluster"),
        (["--launcher", "slurm", "--out", "x", "--gpus-per-node", "-1"], "-1 is no number of devices"),
        (["--launcher", "slurm", "--out", "x", "--sbatch-option=--nodes=3"], "--nodes is what the run decides"),
        (["--launcher", "pbs"], "invalid choice: 'pbs'"),
    ],
)
def test_a_bad_request_is_code_3(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    asked = ["validate", "--framework", "plain", "--model", "tiny:qwen3", "--data", "gsm8k_sample", *arguments]
    try:
        code = cli.main(asked)
    except SystemExit as ending:
        code = int(str(ending.code))
    assert code == 3
    assert sentence in capsys.readouterr().err


def test_a_validation_runs_as_a_job(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "POLL_S", 0.2)
    out, report = tmp_path / "shared", tmp_path / "result.json"
    asked = ["--framework", "plain", "--model", "tiny:qwen3", "--data", "gsm8k_sample", "--checks", "run.completes"]
    asked += ["--set", "steps=1", "--set", "seq_len=32"]
    code = cli.main(["validate", *asked, "--launcher", "slurm", "--out", str(out), "--json", str(report)])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert json.loads((out / "captures" / "run" / "manifest.json").read_text())["world_size"] == 1
    assert "srun --export=ALL --nodes=1" in (out / "scratch" / "run" / "job.sh").read_text()
    assert json.loads(report.read_text())["verdicts"][0]["status"] == "pass"
    assert json.loads((state / "1000.json").read_text())["state"] == "COMPLETED"


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted; job"), (signal.SIGTERM, 143, "job")]
)
def test_an_interrupted_validation_tells_of_a_job_that_may_still_run(
    state: Path, tmp_path: Path, number: int, code: int, said: str
) -> None:
    cluster.set_modes(undying="Access/permission denied", pending_s=30)
    asked = ["validate", "--framework", "plain", "--model", "tiny:qwen3", "--data", "gsm8k_sample"]
    asked += ["--checks", "run.completes", "--launcher", "slurm", "--out", str(tmp_path / "shared")]
    command = [sys.executable, "-m", "workers.cli", *asked]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    wait_for(lambda: (state / "1000.json").exists())
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert error.endswith(
        f"plumbline: {said} 1000 may still run (scancel fails: scancel: error: Kill job error on job id 1000: "
        "Access/permission denied); end it with scancel 1000.\n"
    )
    assert "has been ended" not in error
    cluster.set_modes()
    subprocess.run(["scancel", "1000"], check=True)


def test_a_run_whose_job_failed_does_not_complete(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "POLL_S", 0.2)
    cluster.set_modes(accounted="FAILED|0:9")
    asked = ["--framework", "plain", "--model", "tiny:qwen3", "--data", "gsm8k_sample", "--checks", "run.completes"]
    report = tmp_path / "result.json"
    asked += ["--set", "steps=1", "--set", "seq_len=32", "--out", str(tmp_path / "shared"), "--json", str(report)]
    assert cli.main(["validate", *asked, "--launcher", "slurm"]) == 1, capsys.readouterr().err
    verdict = json.loads(report.read_text())["verdicts"][0]
    assert (verdict["check"], verdict["status"]) == ("run.completes", "fail")
    assert "ended with exit code 137" in verdict["sentence"]
    assert (
        "accounting has job 1000 as FAILED, exit code 0:9, though the command in it ended with" in verdict["sentence"]
    )
