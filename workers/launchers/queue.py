"""Slurm's commands: what they are called with, and what they answer."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ANSWER_S = 60.0
"""A controller under load takes tens of seconds."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_JOB = re.compile(r"(\d+)(;[\w.-]+)?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGT]?)", re.ASCII)
_UNKNOWN = "Invalid job id"
"""What squeue says of a job that it has forgotten."""


class SlurmError(RuntimeError):
    """Slurm, or the way to it, failed; `str()` is one sentence."""


class MayStillRun(SlurmError):
    """A job that was to be ended is perhaps not; `str()` says which, why, and what ends it."""

    def __init__(self, job: str, why: str) -> None:
        super().__init__(f"job {job} may still run ({why}); end it with scancel {job}")


@dataclass(frozen=True)
class Seen:
    """What squeue says of a job."""

    state: str
    """PENDING, RUNNING, COMPLETING …"""
    reason: str
    """what a pending one waits for: Resources, Priority …"""


@dataclass(frozen=True)
class Ended:
    """What accounting says of a job that has ended."""

    state: str
    exit_code: int
    signal: int
    peak_memory_bytes: int | None
    """None where accounting gives no amount that can be read"""


def submit(script: Path, *, output: Path, cwd: Path) -> str:
    """Hand a script to sbatch; the job's number. Raises SlurmError with what sbatch says."""
    arguments = ["sbatch", "--parsable", f"--output={_escape(output)}", f"--chdir={cwd}", str(script)]
    answer = _call(arguments)
    if answer.returncode:
        raise SlurmError(f"sbatch refuses {script}: {_last_line(answer.stderr)}")
    found = _JOB.fullmatch(answer.stdout.strip())
    if found is None:
        raise SlurmError(f"sbatch answers {answer.stdout.strip()[:80]!r} where a job's number was expected")
    return found[1]


def look(job: str) -> Seen | None:
    """What squeue knows of a job; None where it knows it no more. Raises SlurmError."""
    answer = _call(["squeue", "--noheader", f"--jobs={job}", "--format=%T|%r"])
    if answer.returncode:
        if _UNKNOWN in answer.stderr:
            return None
        raise SlurmError(f"squeue fails: {_last_line(answer.stderr)}")
    line = answer.stdout.strip()
    if not line:
        return None
    state, _, reason = line.splitlines()[0].partition("|")
    return Seen(state.strip(), reason.strip())


def read_end(job: str) -> Ended | None:
    """How a job ended, as accounting has it; None where it is not there, or not yet. Raises SlurmError."""
    fields = "JobIDRaw,State,ExitCode,MaxRSS"
    answer = _call(["sacct", "--noheader", "--parsable2", f"--jobs={job}", f"--format={fields}"])
    if answer.returncode:
        raise SlurmError(f"sacct fails: {_last_line(answer.stderr)}")
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.count("|") == 3]
    whole = next((row for row in rows if row[0] == job), None)
    if whole is None:
        return None
    code, _, signal = whole[2].partition(":")
    amounts = [amount for row in rows if (amount := _read_memory(row[3])) is not None]
    return Ended(
        state=whole[1].split()[0] if whole[1].split() else "",  # "CANCELLED by 1000"
        exit_code=int(code) if code.isdecimal() else 1,
        signal=int(signal) if signal.isdecimal() else 0,
        peak_memory_bytes=max(amounts, default=None),
    )


def cancel(job: str) -> None:
    """End a job; one that has ended is no error. Raises SlurmError."""
    answer = _call(["scancel", job])
    if answer.returncode and _UNKNOWN not in answer.stderr:
        raise SlurmError(f"scancel fails: {_last_line(answer.stderr)}")


def _call(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            arguments,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a node's messages are in whatever encoding its administrator chose
            timeout=ANSWER_S,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # ctrl-C is for this process alone: scancel must get through
        )
    except FileNotFoundError:
        raise SlurmError(f"there is no {arguments[0]} on the path of this machine; run it on a login node") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{arguments[0]} has not answered for {ANSWER_S:.0f} s") from None


def _read_memory(text: str) -> int | None:
    found = _MEMORY.fullmatch(text.strip())
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _escape(path: Path) -> str:
    """sbatch fills in patterns that begin with %."""
    return str(path).replace("%", "%%")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"
