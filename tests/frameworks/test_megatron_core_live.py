"""Megatron-core itself, in the environment that PLUMBLINE_ENV_MEGATRON_CORE names.

On a CPU it runs through the stand-in for torch.cuda, and says nothing about that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.live import find_python

VARIABLE = "PLUMBLINE_ENV_MEGATRON_CORE"
ENVIRONMENT, PYTHON = os.environ.get(VARIABLE, ""), find_python(VARIABLE)
SHIM = Path(__file__).parent / "shims" / "cuda_on_cpu.py"
pytestmark = pytest.mark.skipif(not PYTHON, reason=f"{VARIABLE} names no environment")

ONE = ("data.template", "step.settings", "step.loss", "step.denominator", "step.gradients", "step.grad_norm")
RANKS = ("parallel.data", "parallel.gradients", "step.grad_norm")


@pytest.mark.parametrize(
    ("model", "setting", "checks"),
    [
        ("tiny:qwen3", "tp_size=1", ONE),
        ("tiny:qwen3_moe", "tp_size=1", ONE),
        ("tiny:qwen3", "tp_size=2", RANKS),
        ("tiny:qwen3", "pp_size=2", RANKS),
        ("tiny:qwen3_moe", "ep_size=2", RANKS),
    ],
)
def test_megatron_core_takes_the_step(tmp_path: Path, model: str, setting: str, checks: tuple[str, ...]) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "plumbline_web.cli", "validate", "--local", "--env", ENVIRONMENT]
    command += ["--framework", "megatron_core", "--model", model, "--data", "gsm8k_sample", "--set", "steps=1"]
    command += ["--set", setting, "--checks", ",".join(checks), "--json", str(result)]
    stood_in = {"PLUMBLINE_SHIMS": str(SHIM), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **stood_in})
    assert done.returncode in (0, 1, 2), done.stderr[-2000:]
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    verdicts = {verdict["check"]: verdict for verdict in content["verdicts"]}
    found = {check: (verdicts[check]["status"], verdicts[check]["sentence"]) for check in checks}
    assert all(status == "pass" for status, _ in found.values()), found
