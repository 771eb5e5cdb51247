"""Run the loop with and without the recorder, and read what it recorded."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from checks.captures.capture import Capture, open_capture
from checks.memory.measured import Measured, read_measured

ROOT = Path(__file__).parents[2]
LOOP = Path(__file__).with_name("loop.py")
LIMIT_S = 200


@dataclass(frozen=True)
class LoopRun:
    """What one run of the loop printed, and its capture where it was recorded."""

    digest: str
    seconds: tuple[float, ...]
    parameters: int
    capture: Capture | None


def build_environment(device: str) -> dict[str, str]:
    """This tree's packages on the path, installed or not, and no device in sight for a run on the CPU."""
    paths = [str(ROOT), str(ROOT / "capture"), *filter(None, [os.environ.get("PYTHONPATH")])]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    hidden = {} if device.startswith("cuda") else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **offline, **hidden, "PYTHONPATH": os.pathsep.join(paths)}


def run_loop(device: str, *, size: str, steps: int, out: Path | None = None, options: tuple[str, ...] = ()) -> LoopRun:
    """Train on `device`, recorded into `out` with the recorder's `options` where that is given."""
    command = [sys.executable, str(LOOP), device, size, str(steps), "--deterministic"]
    if out is not None:
        command = [sys.executable, "-m", "plumbline_capture", "run", "--out", str(out), *options, "--", *command]
    done = subprocess.run(
        command, env=build_environment(device), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout.strip().splitlines()[-1])
    capture = None if out is None else open_capture(out)
    return LoopRun(printed["digest"], tuple(printed["seconds"]), printed["parameters"], capture)


def hash_sketches(capture: Capture) -> dict[str, str]:
    """`step name` → SHA-256 of the gradient's sketch: equal for gradients that are bitwise the same."""
    found = {}
    for step in capture.steps:
        for name, record in capture.tensors(step, "gradient").items():
            sketch = record.read("sketch")
            assert sketch is not None
            found[f"{step} {name}"] = hashlib.sha256(sketch.numpy().tobytes()).hexdigest()
    return found


@dataclass(frozen=True)
class Overhead:
    """Median seconds of a step without the recorder, and of those that it does not and does capture."""

    plain: float
    idle: float
    captured: float

    @property
    def sentence(self) -> str:
        """The ratios, as they are printed."""
        return (
            f"a plain step takes {self.plain * 1e3:.1f} ms; with the recorder {self.idle / self.plain:.2f} × that "
            f"where nothing is captured, {self.captured / self.plain:.2f} × where a step is"
        )


def measure_overhead(plain: LoopRun, recorded: LoopRun) -> Overhead:
    """Compare steps of both runs; the first is left out, for it loads kernels."""
    assert recorded.capture is not None
    captured = [recorded.seconds[step - 1] for step in recorded.capture.steps if step > 1]
    last = max(recorded.capture.steps)
    idle = [s for step, s in enumerate(recorded.seconds, 1) if 1 < step < last and step not in recorded.capture.steps]
    return Overhead(statistics.median(plain.seconds[1:]), statistics.median(idle), statistics.median(captured))


def read_memory(run: LoopRun) -> Measured:
    """The memory of the only process."""
    assert run.capture is not None
    (measured,) = read_measured(run.capture)
    return measured
