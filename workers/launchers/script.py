"""The sbatch script of a run: every field of it was checked, or stands in quotes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checks.errors import BadRequest

HERE = "$PLUMBLINE_ENDPOINT"
"""Stands in a command for the first node's name and a port; the script finds both out."""

SPARE_S = 120.0
"""Slurm's limit lies so far beyond the run's own: the recorder writes its manifest in between."""

_OPTION = re.compile(r"--([a-z][a-z-]*)(=[A-Za-z0-9_.,:=+/@%*()\[\]&|-]+)?", re.ASCII)
_OURS = frozenset(
    {"job-name", "nodes", "ntasks", "ntasks-per-node", "time", "output", "error", "chdir", "requeue", "no-requeue"}
    | {"gpus", "gpus-per-node", "gpus-per-task", "mem", "array", "wrap", "parsable", "wait", "test-only", "input"}
)
"""What the run decides, or what would make the job another one than is followed."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Size:
    """How many nodes and devices a job takes."""

    nodes: int
    processes_per_node: int
    gpus_per_node: int


def choose_size(processes: int, *, gpus_per_node: int) -> Size:
    """A GPU a process where nodes have any, else one node.

    >>> choose_size(16, gpus_per_node=8)
    Size(nodes=2, processes_per_node=8, gpus_per_node=8)
    """
    if not gpus_per_node:
        return Size(1, processes, 0)
    nodes = math.ceil(processes / gpus_per_node)
    if processes % nodes:
        found = f"{processes} processes are not divided by {nodes} nodes"
        raise BadRequest("gpus-per-node", found, "choose a number that divides them")
    return Size(nodes, processes // nodes, processes // nodes)


def check_option(text: str) -> str:
    """An option for sbatch as one directive.

    Raises:
        BadRequest: it is none, holds what a directive or a shell would read as more, or is one that the run decides.
    """
    found = _OPTION.fullmatch(text)
    if found is None:
        remedy = "write it as --name or --name=value, of letters, digits and _.,:=+/@%*()[]&|-"
        raise BadRequest("sbatch-option", f"{text[:80]!r} is no option that is passed on", remedy)
    if found[1] in _OURS:
        raise BadRequest("sbatch-option", f"--{found[1]} is what the run decides", "leave it out")
    return text


def write_script(
    command: Sequence[str],
    *,
    size: Size,
    options: Sequence[str],
    environment: Mapping[str, str],
    time_limit_s: float,
    memory_limit_bytes: int | None,
    exit_file: Path,
) -> str:
    """The script: directives, the run's environment, the command, and its exit code into a file.

    `options`: as `check_option` let them through. A variable whose name is none is an error of Plumbline.
    """
    directives = [
        "--job-name=plumbline",
        f"--nodes={size.nodes}",
        "--ntasks-per-node=1",
        f"--time={math.ceil((time_limit_s + SPARE_S) / 60)}",
        "--no-requeue",
    ]
    directives += [f"--gpus-per-node={size.gpus_per_node}"] if size.gpus_per_node else []
    directives += [f"--mem={math.ceil(memory_limit_bytes / size.nodes / 2**20)}M"] if memory_limit_bytes else []
    if not any(option.split("=")[0] == "--export" for option in options):
        directives.append("--export=NONE")  # no variable of the submitting shell, which may hold secrets
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in (*directives, *options)), "set -u"]
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a variable")
        lines.append(f"export {name}={shlex.quote(value)}")
    if size.nodes > 1:
        lines.append('PLUMBLINE_ENDPOINT="$(hostname):$((20000 + SLURM_JOB_ID % 20000))"')
    aside = exit_file.with_name(f".{exit_file.name}")
    lines += [
        " ".join(_quote(part) for part in command),
        "code=$?",
        f"printf '%s\\n' \"$code\" > {shlex.quote(str(aside))}",
        f"mv {shlex.quote(str(aside))} {shlex.quote(str(exit_file))}",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _quote(part: str) -> str:
    """A part of the command for the shell: in quotes, but for the one place that the script itself fills in."""
    before, here, after = part.partition(HERE)
    if not here:
        return shlex.quote(part)
    return f'{shlex.quote(before)}"{HERE}"{shlex.quote(after) if after else ""}'
