"""A validation's result made by hand, for the reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict
from workers.request import PhaseTime, ValidationRequest, ValidationResult
from workers.runner import FrameworkRun

HAVE_NOTHING_TO_SAY = (
    *("step.lora", "step.moe", "data.packing", "parallel.data", "parallel.replicas", "parallel.gradients"),
    *("serving.quantised", "transfer.sync"),
    *("convergence.health", "data.preference", "step.rl_loss", "step.scaler"),
    *("step.advantages", "step.rl_logprobs"),
)
"""default checks that skip a short run of one process, without adapters, experts, packing, preferences and a dump"""

PASSED = Verdict(
    check="step.gradients",
    status=Status.PASS,
    sentence="25 gradients agree with float64",
    measurements=(
        Measurement("model.norm.weight", value=2e-7, threshold=4e-6, holds=True, floor=1e-6, limit=4.2e-6),
        Measurement("lm_head.weight", value=3e-6, threshold=5e-6, holds=True, floor=1e-6, limit=5.1e-6, block="rows"),
    ),
    detection_limits={"lm_head": 5.1e-6, "q_proj": 4.2e-5, "norm": 1e-6},
    shared_code=("transformers.Qwen3ForCausalLM",),
    elapsed_s=0.25,
)
FAILED = Verdict(
    check="step.denominator",
    status=Status.FAIL,
    sentence="the loss is divided by 113, not by the 112 counted tokens [of both micro-batches]",
    measurements=(
        Measurement("agrees", value=1e-9, threshold=1e-6, holds=True),
        Measurement("denominator", value=113.0, threshold=112.0, holds=False, unit="tokens"),
    ),
    pattern=Pattern.OBJECTIVE_SCALE,
    first_wrong="num_items_in_batch",
    evidence={"ratio": float("nan"), "worst": float("inf"), "least": float("-inf"), "path": Path("a/b"), "n": (1, 2)},
    elapsed_s=0.5,
)
UNSURE = Verdict("step.update", Status.INCONCLUSIVE, "the learning rate is 0 at every captured step; set steps=4")
BROKEN = Verdict("step.loss", Status.ERROR, "the judge broke: KeyError 'x'\x1b[0m")
SKIPPED = Verdict("data.packing", Status.SKIPPED, "the run does not pack (packing=false)")


def make_run(directory: Path) -> FrameworkRun:
    """A completed run whose log and capture lie in `directory`."""
    return FrameworkRun(
        exit_code=0,
        signal=None,
        ending="completed",
        log=directory / "run.log",
        capture=directory / "capture",
        elapsed_s=3.5,
        peak_memory_bytes=300_000_000,
        last_error=None,
    )


def make_result(*verdicts: Verdict, directory: Path = Path("gone")) -> ValidationResult:
    """A result with these verdicts, or with one of each status."""
    request = ValidationRequest(
        framework="trl", model="tiny:qwen3", data="gsm8k_sample", settings={"batch": 2, "lora_targets": ("q_proj",)}
    )
    return ValidationResult(
        request=request,
        spec=RunSpec(framework="trl", model=Path("models/qwen3"), data=Path("gsm8k_sample.jsonl")),
        verdicts=verdicts or (PASSED, FAILED, UNSURE, BROKEN, SKIPPED),
        phases=(PhaseTime("run: run", 8.0), PhaseTime("reference", 12.5, 8.0), PhaseTime("judge", 0.25, 20.5)),
        runs=(make_run(directory),),
        environment={"python": "3.11.7", "torch": "2.13.0"},
        warnings=("weights are random",),
    )


def rename(verdict: Verdict, check: str) -> Verdict:
    """The same verdict under another check's name."""
    return replace(verdict, check=check)
