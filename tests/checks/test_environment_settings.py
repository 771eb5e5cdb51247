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
    assert (verdict.status, verdict.sentence) == (Status.PASS, "11 switches are in force as asked")
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
    assert verdict.sentence == "10 switches are in force as asked"


def test_a_run_without_a_capture_is_inconclusive(healthy: Material) -> None:
    verdict = environment_settings.judge(replace(healthy, run=replace(healthy.run, capture=None)))
    assert verdict.status is Status.INCONCLUSIVE


def _add_micro_batch(editing: Edit) -> None:
    editing.step(1)["micro_batches"].append(editing.step(1)["micro_batches"][-1])


def _take_micro_batch(editing: Edit) -> None:
    editing.step(1)["micro_batches"].pop()


@pytest.mark.parametrize(("change", "found"), [(_add_micro_batch, 3), (_take_micro_batch, 1)])
def test_a_step_of_more_or_fewer_micro_batches_than_asked_fails(
    healthy: Material, edit: Editor, change: Callable[[Edit], object], found: int
) -> None:
    verdict = judge(healthy, edit, change)
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.OBJECTIVE_SCALE)
    assert verdict.sentence == f"micro-batches of a step is {found}, asked 2"
    assert verdict.first_wrong == "micro-batches of a step"


def test_other_rows_than_the_batch_that_was_asked_for_fail(healthy: Material) -> None:
    """The healthy run has two rows a micro-batch."""
    verdict = environment_settings.judge(replace(healthy, spec=replace(healthy.spec, batch=7)))
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "rows of a micro-batch")
    assert verdict.sentence == "rows of a micro-batch is 2, asked 7"
    assert verdict.pattern is Pattern.OBJECTIVE_SCALE
    for changes in ({"batch": 7, "unstated": ("batch",)}, {"batch": 7, "padding_free": True}, {"batch": 10**6}):
        material = replace(healthy, spec=replace(healthy.spec, **changes))
        assert environment_settings.judge(material).status is Status.PASS, changes


def test_a_step_that_the_data_do_not_fill_may_have_fewer_micro_batches(healthy: Material, edit: Editor) -> None:
    assert healthy.dataset is not None
    rows = healthy.dataset.documents
    for count, status in ((3, Status.PASS), (4, Status.FAIL)):  # batch 2, accumulation 2
        few = replace(healthy, dataset=replace(healthy.dataset, documents=rows[:count]))
        assert judge(few, edit, _take_micro_batch).status is status
    assert judge(replace(healthy, dataset=None), edit, _take_micro_batch).status is Status.PASS
    assert judge(replace(healthy, dataset=None), edit, _add_micro_batch).status is Status.FAIL


def test_packed_rows_are_counted_by_their_tokens(healthy: Material, edit: Editor) -> None:
    assert healthy.dataset is not None
    spec = replace(healthy.spec, packing=True, seq_len=10)
    for tokens, status in ((39, Status.PASS), (40, Status.FAIL)):
        dataset = replace(healthy.dataset, documents=((0,) * 10,) * 3 + ((0,) * (tokens - 30),))
        material = replace(healthy, dataset=dataset, spec=spec)
        assert judge(material, edit, _take_micro_batch).status is status


def test_what_the_class_keeps_in_float32_is_no_other_dtype(healthy: Material, edit: Editor) -> None:
    spec = replace(healthy.spec, precision="bf16_params")

    def low(editing: Edit) -> None:
        for step in (1, 3):
            editing.step(step)["model"]["parameter_dtypes"] = {"torch.bfloat16": 24, "torch.float32": 1}
        for entry in editing.manifest["tensors"]:
            if entry["kind"] in ("gradient", "optimizer_state") and entry["name"] != "model.norm.weight":
                entry["dtype"] = "torch.bfloat16"

    named = judge(replace(healthy, spec=spec, float32_names=frozenset({"model.norm.weight"})), edit, low)
    assert named.status is Status.PASS
    verdict = judge(replace(healthy, spec=spec), edit, low)
    assert verdict.sentence == (
        "dtype of parameters is torch.bfloat16, torch.float32, asked torch.bfloat16; so are dtype of gradients, "
        "dtype of optimizer state"
    )
