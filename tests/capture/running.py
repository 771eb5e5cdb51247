"""Run a script with and without the recorder, and read what was recorded with nothing but JSON and safetensors."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

PLAIN_LM = Path(__file__).with_name("plain_lm.py")
_ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True)
class Recorded:
    """A command that was run with the recorder."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The capture's manifest."""
        content: dict[str, Any] = json.loads((self.out / "manifest.json").read_text())
        return content

    def step(self, number: int, *, rank: int = 0) -> dict[str, Any]:
        """The step record of a rank."""
        ranks = {entry["rank"]: entry for entry in self.manifest["ranks"]}
        return next(record for record in ranks[rank]["steps"] if record["step"] == number)

    def entries(self, **wanted: object) -> list[dict[str, Any]]:
        """The tensor entries with these values."""
        return [e for e in self.manifest["tensors"] if all(e[key] == value for key, value in wanted.items())]

    def tensor(self, representation: str, **wanted: object) -> torch.Tensor:
        """One representation of the only tensor entry with these values."""
        (entry,) = self.entries(**wanted)
        with safe_open(self.out / entry["file"], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(entry["representations"][representation])
            return tensor


def run_plain(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the recorder."""
    return subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)


def launcher(out: Path, *options: str) -> list[str]:
    """Return the beginning of a recorded command line."""
    return [sys.executable, "-m", "plumbline_capture", "run", "--out", str(out), *options, "--"]


def run_recorded(out: Path, *command: str, options: tuple[str, ...] = ()) -> Recorded:
    """Run a command with the recorder."""
    done = run_plain(*launcher(out, *options), *command)
    return Recorded(done.returncode, done.stdout, done.stderr, out)


def start_recorded(out: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command with the recorder, its output in a pipe."""
    return subprocess.Popen([*launcher(out), *command], env=_ENVIRONMENT, stdout=subprocess.PIPE, text=True)
