"""The command line of a framework's run with the recorder in front."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from workers.frameworks.base import Launch


def build_command(
    launch: Launch,
    *,
    out: Path,
    steps: Sequence[int],
    full: bool = False,
    modules: str | None = None,
    memory: bool = False,
    preload: Sequence[Path] = (),
) -> list[str]:
    """The argument list that runs `launch.command` with the recorder in front."""
    command = [sys.executable, "-m", "plumbline_capture", "run", "--out", str(out)]
    command += ["--steps", ",".join(map(str, steps))]
    if full:
        command += ["--full"]
    if modules is not None:
        command += ["--modules", modules]
    if memory:
        command += ["--memory"]
    if launch.full_parameters:
        command += ["--full-parameters", launch.full_parameters]
    if launch.names is not None:
        command += ["--names", str(launch.names)]
    for file in launch.hooks:
        command += ["--hooks", str(file)]
    for file in preload:
        command += ["--preload", str(file)]
    if launch.probes is not None:
        command += ["--probes", str(launch.probes)]
    for directory in launch.checkpoints:
        command += ["--checkpoint", str(directory)]
    if launch.export is not None:
        command += ["--export", str(launch.export)]
    return [*command, "--", *launch.command]
