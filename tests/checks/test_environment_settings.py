"""environment.settings: what was asked against what was in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checks.lifecycle import environment_settings
from checks.material import Material
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit


def judge(material: Material, edit: Editor, change: Callable[[Edit], object]) -> Verdict:
    assert material.capture is not None
    editing = edit(material.capture)
    change(editing)
    return environment_settings.judge(replace(material, run=replace(material.run, capture=editing.save())))


def test_every_switch_of_a_healthy_run_is_as_asked(healthy: Material) -> None:
    verdict = environment_settings.judge(healthy)
    assert (verdict.status, verdict.sentence) == (Status.PASS, "9 switches are in force as asked")
    assert {entry["status"] for entry in verdict.evidence["switches"]} == {"as asked"}
    assert {entry["step"] for entry in verdict.evidence["switches"]} == {None, 1, 3}


def _tf32(editing: Edit) -> None:
    editing.manifest["environment"]["torch"]["matmul_precision"] = "high"


def _half_moments(editing: Edit) -> None:
    for entry in editing.manifest["tensors"]:
        if (entry["kind"], entry["field"]) == ("optimizer_state", "exp_avg"):
            entry["dtype"] = "torch.bfloat16"


@pytest.mark.parametrize(
    ("change", "first", "said", "pattern"),
    [
        (_tf32, "precision of float32 matrix products", "is high, asked highest", Pattern.PRECISION),
        (
            _half_moments,
            "dtype of optimizer state",
            "is torch.bfloat16, torch.float32, asked torch.float32",
            Pattern.PRECISION,
        ),
        (lambda e: e.step(3)["model"].update(training=False), "training mode", "is off", Pattern.MODEL_DEFINITION),
        (lambda e: e.step(1)["model"].update(attention="eager"), "attention", "is eager", Pattern.MODEL_DEFINITION),
        (lambda e: e.step(1)["model"].update(autocast="torch.bfloat16"), "autocast", "asked None", Pattern.PRECISION),
    ],
)
def test_a_switch_that_is_not_as_asked_fails_by_name(
    healthy: Material, edit: Editor, change: Callable[[Edit], object], first: str, said: str, pattern: Pattern
) -> None:
    verdict = judge(healthy, edit, change)
    assert (verdict.status, verdict.first_wrong, verdict.pattern) == (Status.FAIL, first, pattern)
    assert said in verdict.sentence


@pytest.mark.parametrize("asked", ["gradient_checkpointing", "lora"])
def test_what_was_asked_and_ignored_fails(healthy: Material, asked: str) -> None:
    verdict = environment_settings.judge(replace(healthy, spec=replace(healthy.spec, **{asked: True})))
    assert verdict.status is Status.FAIL
    assert "is off, asked on" in verdict.sentence


def test_a_capture_that_does_not_name_torchs_settings_is_judged_by_the_rest(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, lambda e: e.manifest["environment"].pop("torch"))
    assert verdict.sentence == "8 switches are in force as asked"


def test_a_run_without_a_capture_is_inconclusive(healthy: Material) -> None:
    verdict = environment_settings.judge(replace(healthy, run=replace(healthy.run, capture=None)))
    assert verdict.status is Status.INCONCLUSIVE
