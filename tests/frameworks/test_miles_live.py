"""Miles itself, from the checkout that PLUMBLINE_MILES_CHECKOUT names, in the environment of PLUMBLINE_ENV_MILES.

On a CPU it runs through the stand-ins for torch.cuda, Transformer Engine, sglang and Megatron-LM's scripts, and says
nothing about these.
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
from workers.frameworks.miles.checkout import VARIABLE

PYTHON = find_python("PLUMBLINE_ENV_MILES")
SHIMS = Path(__file__).parent / "shims"
STANDING_IN = ("cuda_on_cpu.py", "transformer_engine.py", "miles_alone.py")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="PLUMBLINE_ENV_MILES names no environment"),
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no checkout of Miles"),
]

STEP = ("step.rl_loss", "step.advantages", "step.rl_logprobs", "step.grad_norm")
RANKS = ("parallel.data", "parallel.replicas", "parallel.gradients")


def validate(directory: Path, *settings: str, exact: bool = False) -> dict[str, dict[str, Any]]:
    """Verdicts by check of one validation of one step; `exact`: without the rounding of fused cross-entropy."""
    command = [sys.executable, "-m", "plumbline_web.cli", "validate", "--local", "--framework", "miles"]
    command += ["--model", "tiny:qwen3", "--data", "gsm8k_sample", "--json", str(directory / "result.json")]
    for setting in ("steps=1", "num_generations=4", *settings):
        command += ["--set", setting]
    names = (*STANDING_IN, "exact_cross_entropy.py") if exact else STANDING_IN
    shims = os.pathsep.join(str(SHIMS / name) for name in names)
    environment = {**os.environ, "PLUMBLINE_FRAMEWORK_PYTHON": str(PYTHON), "PLUMBLINE_SHIMS": shims}
    subprocess.run(command, capture_output=True, check=False, env={**environment, "OMP_NUM_THREADS": "1"})
    content = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    return {verdict["check"]: verdict for verdict in content["verdicts"]}


def passed(verdicts: dict[str, dict[str, Any]], *checks: str) -> None:
    found = {check: (verdicts[check]["status"], verdicts[check]["sentence"]) for check in checks}
    assert all(status == "pass" for status, _ in found.values()), found


@pytest.mark.parametrize("variant", ["grpo", "gspo"])
@pytest.mark.parametrize("axis", ["tp_size", "cp_size"])
def test_a_divided_step_fails_only_on_the_precision_of_the_gradient_by_the_logits(
    tmp_path: Path, axis: str, variant: str
) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    settings = ("objective=grpo", f"grpo_loss={variant}", f"{axis}=2")
    verdicts = validate(shipped, *settings)
    passed(verdicts, *STEP, *RANKS)
    assert verdicts["step.gradients"]["status"] == "fail"
    assert verdicts["step.gradients"]["first_wrong"] == "gradient by the logits"
    passed(validate(tmp_path, *settings, exact=True), *STEP, *RANKS, "step.gradients")


def test_whitening_over_context_parallel_ranks_fails_and_is_named(tmp_path: Path) -> None:
    verdicts = validate(tmp_path, "objective=reinforce_plus_plus", "cp_size=2", exact=True)
    assert verdicts["step.advantages"]["status"] == "fail"
    assert verdicts["step.advantages"]["first_wrong"] == "whitening"
    assert verdicts["parallel.gradients"]["status"] == "fail"
    passed(verdicts, "step.rl_loss", "step.rl_logprobs", "step.gradients", "step.grad_norm")


def test_ppo_and_reinforce_plus_plus_of_one_process_are_as_defined(tmp_path: Path) -> None:
    for objective in ("ppo", "reinforce_plus_plus"):
        passed(validate(tmp_path, f"objective={objective}", exact=True), *STEP, "step.gradients")
