"""A sound framework passes, with limits that are worth something."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.verdict import Status
from tests.acceptance.conftest import Validate, by_name, statuses
from tests.workers.results import HAVE_NOTHING_TO_SAY
from workers.request import ValidationResult, exit_code

FIVE = ("step.loss", "step.denominator", "step.gradients", "step.update", "step.accumulation")


def test_every_check_passes_on_transformers_with_a_tiny_qwen3(run_validation: Validate) -> None:
    assert_sound(run_validation("transformers"))


@pytest.mark.usefixtures("cold")
def test_every_check_passes_on_trl_with_a_tiny_qwen3(run_validation: Validate) -> None:
    assert_sound(run_validation("trl"))


def assert_sound(result: ValidationResult) -> None:
    """Every check that has something to say passes, with limits that are worth something."""
    found = statuses(result)
    for name in HAVE_NOTHING_TO_SAY:
        assert found.pop(name) is Status.SKIPPED
    assert set(found.values()) == {Status.PASS}, {v.check: v.sentence for v in result.verdicts}
    assert exit_code(result.verdicts) == 0
    verdicts = by_name(result)
    # The subtlest public fault in float32 moves a gradient by 2.5e-4 of its norm.
    limits = verdicts["step.gradients"].detection_limits
    assert max(limit for kind, limit in limits.items() if not kind.endswith("by block")) < 1e-4
    assert limits["scale of all"] < 1e-5
    assert all(verdicts[name].detection_limit is not None for name in FIVE)
    assert verdicts["step.gradients"].shared_code == ()


def test_bf16_passes_and_says_what_it_cannot_see(run_validation: Validate) -> None:
    checks = ("run.completes", "step.settings", "step.loss", "step.denominator", "step.gradients", "step.update")
    result = run_validation("transformers", "precision=bf16", checks=checks)
    assert set(statuses(result).values()) == {Status.PASS}, {v.check: v.sentence for v in result.verdicts}
    limit = by_name(result)["step.gradients"].detection_limit
    assert limit is not None
    assert limit > 0.05


def test_lora_and_sgd_with_a_schedule_pass(run_validation: Validate) -> None:
    checks = ("step.settings", "step.loss", "step.gradients", "step.update")
    settings = ("lora=true", "optimizer=sgd", "momentum=0.9", "schedule=linear", "warmup_steps=1")
    result = run_validation("trl", *settings, model="tiny:llama", checks=checks)
    assert set(statuses(result).values()) == {Status.PASS}, {v.check: v.sentence for v in result.verdicts}


def test_experts_are_judged_with_the_choices_of_the_run(run_validation: Validate) -> None:
    checks = ("step.settings", "step.loss", "step.denominator", "step.gradients", "model.definition")
    result = run_validation("transformers", model="tiny:qwen3_moe", checks=checks)
    verdicts = by_name(result)
    assert verdicts["step.gradients"].status is Status.PASS
    chosen = [m for m in verdicts["step.gradients"].measurements if m.name.startswith("experts chosen by")]
    assert len(chosen) == 2
    assert all(m.holds and m.unit == "score" for m in chosen)
    # The plain model stands as reference, so the class is judged too, each side choosing its experts by itself.
    assert verdicts["step.gradients"].shared_code == ()
    assert verdicts["model.definition"].status is Status.PASS
    assert exit_code(result.verdicts) == 0


CONVERTS = Path(__file__).parents[1] / "frameworks" / "shims" / "resume_converts.py"


@pytest.mark.parametrize(
    ("shim", "status"), [("", Status.FAIL), (str(CONVERTS), Status.PASS)], ids=["shipped", "mended"]
)
def test_trainer_resumes_without_experts_whose_names_it_does_not_convert(
    shim: str, status: Status, run_validation: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_SHIMS", shim)
    checks = ("checkpoint.resume", "checkpoint.roundtrip")
    found = by_name(run_validation("transformers", model="tiny:qwen3_moe", checks=checks))
    assert {verdict.status for verdict in found.values()} == {status}
    lost = "mlp.experts.down_proj was not loaded" in found["checkpoint.roundtrip"].sentence
    assert lost is (status is Status.FAIL)
