"""A cluster of one machine: what the stand-ins for Slurm's commands share. Jobs are real processes.

Its state is a directory, named by SLURM_STAND_IN: a file a job, and `modes.json`, which says how the cluster
misbehaves: `pending_s`: how long a job waits; `end_as`: the state in which the cluster ends it `after_s` after its
start; `accounting`: false where sacct is not set up; `refuse`: what sbatch says instead; `deaf`: how many calls of
squeue fail; `undying`: what scancel says instead; `accounted`: STATE|CODE:SIGNAL that sacct says instead of what was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")


def root() -> Path:
    return Path(os.environ["SLURM_STAND_IN"])


def modes() -> dict[str, Any]:
    file = root() / "modes.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def set_modes(**given: Any) -> None:
    (root() / "modes.json").write_text(json.dumps(given))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    with (root() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(job: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((root() / f"{job}.json").read_text())
    except FileNotFoundError:
        return None
    return found


def change(job: str, **changes: Any) -> dict[str, Any]:
    """Change a job; one that has ended stays as it is."""
    with locked():
        found = read(job) or {}
        if found.get("state") not in ENDED:
            found |= changes
            aside = root() / f".{job}"
            aside.write_text(json.dumps(found))
            aside.replace(root() / f"{job}.json")
        return found


def submit(arguments: list[str]) -> int:
    """sbatch --parsable [options] SCRIPT"""
    if refusal := modes().get("refuse"):
        print(f"sbatch: error: {refusal}", file=sys.stderr)
        return 1
    *given, script = arguments
    text = Path(script).read_text()
    directives = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    options = {name: value for name, _, value in (each.partition("=") for each in (*directives, *given))}
    with locked():
        job = str(1000 + len(list(root().glob("[0-9]*.json"))))
        (root() / f"{job}.json").write_text(json.dumps({"state": "PENDING", "script": script, "options": options}))
    subprocess.Popen(
        [sys.executable, __file__, job],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    print(job)
    return 0


def run(job: str) -> None:
    """What the controller and the node do with a job."""
    found = read(job)
    assert found is not None
    time.sleep(float(modes().get("pending_s", 0)))
    options = found["options"]
    if change(job, state="RUNNING")["state"] != "RUNNING":
        return
    # --export=NONE: nothing of the submitting shell but what names the job
    environment = {"SLURM_JOB_ID": job, "SLURM_NNODES": options["--nodes"], "SLURM_STAND_IN": str(root())}
    with Path(options["--output"].replace("%%", "%")).open("wb") as output:
        process = subprocess.Popen(
            ["bash", found["script"]],
            cwd=options["--chdir"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        change(job, group=process.pid)
        end_as = modes().get("end_as")
        try:
            code = process.wait(timeout=float(modes().get("after_s", 0.3)) if end_as else None)
        except subprocess.TimeoutExpired:
            change(job, state=end_as, code=0, signal=9)
            end_group(process.pid)
            return
    change(job, state="FAILED" if code else "COMPLETED", code=max(code, 0), signal=max(-code, 0))


def end_group(group: int) -> None:
    """TERM, a moment, KILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
            time.sleep(0.3)


def look(arguments: list[str]) -> int:
    """squeue --noheader --jobs=ID --format=%T|%r"""
    with locked():
        state = modes()
        if state.get("deaf", 0) > 0:
            set_modes(**state | {"deaf": state["deaf"] - 1})
            print("slurm_load_jobs error: Unable to contact slurm controller", file=sys.stderr)
            return 1
    job = next(each.partition("=")[2] for each in arguments if each.startswith("--jobs="))
    found = read(job)
    if found is None or found["state"] in ENDED:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    print(f"{found['state']}|{'Resources' if found['state'] == 'PENDING' else 'None'}")
    return 0


def account(arguments: list[str]) -> int:
    """sacct --noheader --parsable2 --jobs=ID --format=JobIDRaw,State,ExitCode,MaxRSS"""
    if not modes().get("accounting", True):
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    job = next(each.partition("=")[2] for each in arguments if each.startswith("--jobs="))
    found = read(job)
    if found is not None:
        state = f"{found['state']} by 1000" if found["state"] == "CANCELLED" else found["state"]
        code = f"{found.get('code', 0)}:{found.get('signal', 0)}"
        state, code = modes().get("accounted", f"{state}|{code}").split("|")
        print(f"{job}|{state}|{code}|\n{job}.batch|{state}|{code}|2048K\n{job}.0|{state}|{code}|1.5M")
    return 0


def cancel(arguments: list[str]) -> int:
    """scancel ID"""
    if refusal := modes().get("undying"):
        print(f"scancel: error: Kill job error on job id {arguments[0]}: {refusal}", file=sys.stderr)
        return 1
    found = read(arguments[0])
    if found is None:
        print("scancel: error: Kill job error on job id: Invalid job id specified", file=sys.stderr)
        return 1
    group = found.get("group")
    change(arguments[0], state="CANCELLED", code=0, signal=15)
    if group and found["state"] not in ENDED:
        end_group(group)
    return 0


def start_step(arguments: list[str]) -> int:
    """srun [options] COMMAND: once a node, all on this machine."""
    options = {name: value for name, _, value in (each.partition("=") for each in arguments if each.startswith("--"))}
    first = next(place for place, each in enumerate(arguments) if not each.startswith("--"))
    nodes = int(options["--nodes"])
    steps = [
        subprocess.Popen(arguments[first:], env=os.environ | {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node)})
        for node in range(nodes)
    ]
    return max(128 - step.wait() if step.wait() < 0 else step.wait() for step in steps)


COMMANDS = {"sbatch": submit, "squeue": look, "sacct": account, "scancel": cancel, "srun": start_step}


def install(directory: Path) -> None:
    """Write a program for each command."""
    directory.mkdir(parents=True)
    for name in COMMANDS:
        file = directory / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} {name} "$@"\n')
        file.chmod(0o755)


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    if name in COMMANDS:
        sys.exit(COMMANDS[name](rest))
    run(name)
