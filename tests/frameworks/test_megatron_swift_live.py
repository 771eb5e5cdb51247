"""Megatron-SWIFT itself, in the environment that PLUMBLINE_ENV_MEGATRON_SWIFT names.

On a CPU it runs through the stand-ins for torch.cuda and Transformer Engine, and says nothing about these.
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

VARIABLE = "PLUMBLINE_ENV_MEGATRON_SWIFT"
ENVIRONMENT, PYTHON = os.environ.get(VARIABLE, ""), find_python(VARIABLE)
SHIMS = Path(__file__).parent / "shims"
pytestmark = pytest.mark.skipif(not PYTHON, reason=f"{VARIABLE} names no environment")


def validate(directory: Path, checks: tuple[str, ...], model: str, *settings: str) -> dict[str, dict[str, Any]]:
    """Verdicts by check of one validation of one step."""
    command = [sys.executable, "-m", "plumbline_web.cli", "validate", "--local", "--env", ENVIRONMENT]
    command += ["--framework", "megatron_swift", "--model", model, "--data", "gsm8k_sample"]
    command += ["--checks", ",".join(checks), "--json", str(directory / "result.json")]
    for setting in ("steps=1", *settings):
        command += ["--set", setting]
    shims = os.pathsep.join(str(SHIMS / name) for name in ("cuda_on_cpu.py", "transformer_engine.py"))
    environment = {**os.environ, "PLUMBLINE_SHIMS": shims, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode in (0, 1, 2), done.stderr[-2000:]
    content = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    return {verdict["check"]: verdict for verdict in content["verdicts"]}


def passed(verdicts: dict[str, dict[str, Any]], *checks: str) -> None:
    found = {check: (verdicts[check]["status"], verdicts[check]["sentence"]) for check in checks}
    assert all(status == "pass" for status, _ in found.values()), found


ONE = (
    *("data.template", "data.mask", "step.settings", "step.loss", "step.denominator", "step.gradients"),
    "step.grad_norm",
)
RANKS = ("data.template", "data.coverage", "parallel.data", "parallel.gradients", "step.grad_norm")


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("tiny:qwen3", ()),
        ("tiny:qwen3", ("padding_free=true",)),
        ("tiny:qwen3", ("packing=true",)),
        ("tiny:qwen3_moe", ()),
    ],
    ids=["padded", "padding_free", "packed", "experts"],
)
def test_one_process_takes_the_step_of_the_definition(tmp_path: Path, model: str, settings: tuple[str, ...]) -> None:
    passed(validate(tmp_path, ONE, model, *settings), *ONE)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("tiny:qwen3", ("pp_size=2",)),
        ("tiny:qwen3", ("cp_size=2",)),
        ("tiny:qwen3_moe", ("ep_size=2",)),
        ("tiny:qwen3", ("tp_size=2", "options=perform_initialization=true")),
        ("tiny:qwen3", ("tp_size=2", "pp_size=2", "options=perform_initialization=true")),
    ],
    ids=["pp2", "cp2", "ep2", "tp2", "tp2-pp2"],
)
def test_two_processes_take_the_step_of_one(tmp_path: Path, model: str, settings: tuple[str, ...]) -> None:
    passed(validate(tmp_path, RANKS, model, *settings), *RANKS)


def test_tensor_parallel_by_default_leaves_shards_out_of_the_gradient_norm(tmp_path: Path) -> None:
    verdicts = validate(tmp_path, (*RANKS, "parallel.replicas"), "tiny:qwen3", "tp_size=2")
    passed(verdicts, "data.template", "parallel.data", "parallel.replicas")
    assert verdicts["step.grad_norm"]["status"] == "fail"
    assert (
        "the shards of embed_tokens and lm_head on every rank but the first" in verdicts["step.grad_norm"]["sentence"]
    )
    assert "the norm that rank 0 and rank 1 clips by is not" in verdicts["parallel.gradients"]["sentence"]
