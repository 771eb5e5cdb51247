"""Time of a whole `plumbline validate --local` by phase: `python -m benchmarks.validation [--rounds 3]`."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIVE = "step.loss,step.denominator,step.gradients,step.update,step.accumulation"


def run_once(framework: str, data: str) -> tuple[float, dict[str, float]]:
    """Wall seconds of the command, and of its phases."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "workers.cli", "validate", "--local", "--framework", framework]
        command += ["--model", "tiny:qwen3", "--data", data, "--checks", FIVE, "--json", str(file)]
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall = time.perf_counter() - begin
        phases = json.loads(file.read_text())["phases"]
    return wall, {phase["name"]: phase["seconds"] for phase in phases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for framework, data in (("transformers", "gsm8k_sample"), ("trl", "tulu3_sample")):
        rounds = [run_once(framework, data) for _ in range(options.rounds)]
        walls = sorted(wall for wall, _ in rounds)
        print(f"{framework}: min {walls[0]:.1f} s, median {statistics.median(walls):.1f} s, max {walls[-1]:.1f} s")
        for name in rounds[0][1]:
            print(f"  {name:<20} {min(phases[name] for _, phases in rounds):6.2f} s")


if __name__ == "__main__":
    main()
