"""step.update: optimizer settings and clipping in force against those asked, and what is not trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.architecture import step_update
from checks.architecture.step_update import find_setting_mismatches
from checks.captures.capture import Capture
from checks.material import Material
from checks.references.update import expected_clip_factor
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, capture_of, swap

NORM = "model.norm.weight"


OUTPUT = "model.layers.0.self_attn.o_proj.weight"  # 4,096 elements: sampled whole


def judge(material: Material, editing: Edit) -> Verdict:
    return step_update.judge(swap(material, editing.save()))


def set_lr(group: dict[str, Any]) -> None:
    group["settings"]["lr"] = 1.00001e-3


def set_beta1(group: dict[str, Any]) -> None:
    group["settings"]["betas"] = [0.95, 0.999]


def set_beta2(group: dict[str, Any]) -> None:
    group["settings"]["betas"] = [0.9, 0.95]


def set_eps(group: dict[str, Any]) -> None:
    group["settings"]["eps"] = 1e-6


@pytest.mark.parametrize(
    ("change", "setting", "shown"),
    [
        (set_lr, "lr", "0.00100001, asked 0.001"),
        (set_beta1, "beta1", "0.95, asked 0.9"),
        (set_beta2, "beta2", "0.95, asked 0.999"),
        (set_eps, "eps", "1e-06, asked 1e-08"),
    ],
)
@pytest.mark.parametrize("step", [1, 3])
def test_a_setting_in_force_that_was_not_asked_is_named(
    healthy: Material, edit: Editor, change: Callable[[dict[str, Any]], None], setting: str, shown: str, step: int
) -> None:
    editing = edit(healthy.capture)
    change(editing.group(OUTPUT, step))
    verdict = judge(healthy, editing)
    group = f"the group of {editing.group(OUTPUT, step)['parameters'][0]}"
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"{setting} of {group} is {shown}"
    assert verdict.first_wrong == f"{setting} of {group}"
    assert verdict.evidence["settings"] == [f"{setting} of {group} is {shown}".replace("1e-06", "1e-06")]


def test_a_setting_may_be_kept_in_float32_or_be_missing_altogether(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.group(OUTPUT)["settings"]["lr"] = float(torch.tensor(1e-3, dtype=torch.float32))
    assert judge(healthy, editing).status is Status.PASS
    del editing.group(NORM)["settings"]["betas"]
    del editing.group(NORM)["settings"]["eps"]
    found = list(find_setting_mismatches(healthy, swap(healthy, edit_of(editing, edit)).capture, 1))  # type: ignore[arg-type]
    assert [m.setting for m in found] == ["eps", "beta1", "beta2"]
    assert {m.in_force for m in found} == {None}


def edit_of(editing: Edit, edit: Editor) -> Capture:
    """The edit's manifest, saved a second time beside the first."""
    again = Edit(Capture(editing.out, editing.manifest), editing.out.with_name(f"{editing.out.name}-again"))
    return again.save()


def test_weight_decay_on_norms_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    group = editing.group(NORM)
    assert group["settings"]["weight_decay"] == 0.0
    group["settings"]["weight_decay"] = 0.01
    verdict = judge(healthy, editing)
    norms = len(group["parameters"])
    first = group["parameters"][0]
    assert verdict.sentence == f"weight_decay of {norms} norm weights (first {first}) is 0.01, asked 0"
    assert verdict.first_wrong == f"weight_decay of {first}"


def test_missing_weight_decay_on_matrices_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    group = editing.group(OUTPUT)
    group["settings"]["weight_decay"] = 0.0
    verdict = judge(healthy, editing)
    count, first = len(group["parameters"]), group["parameters"][0]
    assert verdict.sentence == f"weight_decay of {count} groups or parameters (first {first}) is 0, asked 0.01"


def test_another_clip_threshold_in_force_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["clips"][0]["max_norm"] = 0.5
    assert judge(healthy, editing).sentence == "max_grad_norm of the step is 0.5, asked 1"


def test_a_clip_that_was_asked_and_did_not_happen_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["clips"].clear()
    assert judge(healthy, editing).sentence == "max_grad_norm of the step is no clipping, asked 1"
    early = edit(healthy.capture)
    early.step()["clips"][0]["after_backward"] = 1
    assert judge(healthy, early).sentence == "max_grad_norm of the step is no clipping, asked 1"


def test_the_last_clip_of_the_step_counts(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    clips = editing.step()["clips"]
    clips.insert(0, {**clips[0], "max_norm": 0.25})
    assert judge(healthy, editing).status is Status.PASS


def test_a_run_that_asked_for_no_clipping_is_replayed_without(healthy: Material) -> None:
    unclipped = replace(healthy, spec=replace(healthy.spec, max_grad_norm=0.0))
    assert expected_clip_factor(unclipped.spec, capture_of(healthy), 1) == 1.0
    assert list(find_setting_mismatches(unclipped, capture_of(healthy), 1)) == []
    assert step_update.judge(unclipped).status is Status.FAIL


def test_the_clip_factor_comes_from_the_norm_of_all_gradients(healthy: Material) -> None:
    total = 11.297467231750488
    factor = expected_clip_factor(healthy.spec, capture_of(healthy), 1)
    recorded = capture_of(healthy).step(1).clips[0]
    assert factor == pytest.approx(recorded.factor, rel=1e-6)
    assert factor == pytest.approx(1.0 / (recorded.total_norm + 1e-6), rel=1e-6)
    assert total > 1.0
    generous = replace(healthy.spec, max_grad_norm=1e3)
    assert expected_clip_factor(generous, capture_of(healthy), 1) == 1.0


def test_a_parameter_in_no_group_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.group(NORM)["parameters"].remove(NORM)
    verdict = judge(healthy, editing)
    assert verdict.sentence == f"{NORM} is not trained: it is in no optimizer group (1 parameters in all)"
    assert (verdict.first_wrong, verdict.pattern) == (NORM, Pattern.OBJECTIVE_SCALE)


def test_a_frozen_parameter_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.group(NORM)["parameters"].remove(NORM)
    editing.step()["trainable"].remove(NORM)
    editing.step()["frozen"].append(NORM)
    assert judge(healthy, editing).sentence == f"{NORM} is not trained: it is frozen (1 parameters in all)"


def test_a_parameter_that_is_frozen_later_is_named_with_the_step(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step(3)["trainable"].remove(NORM)
    editing.step(3)["frozen"].append(NORM)
    verdict = judge(healthy, editing)
    assert verdict.sentence == f"{NORM} is not trained at step 3: it is frozen (1 parameters in all)"
    assert verdict.status is Status.FAIL


def test_an_adapter_that_no_group_holds_is_named(healthy: Material, edit: Editor) -> None:
    adapter = "model.layers.0.self_attn.q_proj.lora_A.weight"
    spec = replace(healthy.spec, lora=True)
    material = replace(healthy, spec=spec, expected_adapters=(OUTPUT, adapter))
    verdict = step_update.judge(material)
    assert verdict.sentence == f"{adapter} is not trained: it is in no optimizer group (1 parameters in all)"
    assert verdict.pattern is Pattern.MODEL_DEFINITION
    editing = edit(healthy.capture)
    editing.step()["frozen"].append(adapter)
    assert "it is frozen" in judge(material, editing).sentence
    # With adapters the frozen base model is as it should be.
    assert step_update.judge(replace(material, expected_adapters=(OUTPUT,))).status is Status.PASS


def test_a_group_without_parameters_is_held_to_the_settings_too(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    groups = editing.step()["optimizer"]["groups"]
    groups.append({"settings": {**groups[0]["settings"], "lr": 0.5}, "parameters": []})
    assert judge(healthy, editing).sentence == "lr of an empty group is 0.5, asked 0.001"


def test_settings_that_differ_are_counted_one_setting_at_a_time(healthy: Material, edit: Editor) -> None:
    both = edit(healthy.capture)
    group = both.group(NORM)
    group["settings"] |= {"lr": 0.5, "weight_decay": 0.25}
    assert judge(healthy, both).sentence == f"lr of the group of {group['parameters'][0]} is 0.5, asked 0.001"
    twice = edit(healthy.capture)
    groups = twice.step()["optimizer"]["groups"]
    assert len(groups) == 2
    for group in groups:
        group["settings"]["eps"] = 0.5
    first = groups[0]["parameters"][0]
    assert judge(healthy, twice).sentence == (
        f"eps of 2 groups or parameters (first the group of {first}) is 0.5, asked 1e-08"
    )
