"""step.update: new parameters, moments and settings, each from both sides of its threshold."""

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
from checks.references.update import ParameterUpdate, expected_clip_factor, replay_update
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, swap

NORM = "model.norm.weight"
OUTPUT = "model.layers.0.self_attn.o_proj.weight"  # 4,096 elements: sampled whole
UP = "model.layers.1.mlp.up_proj.weight"  # more: sampled


def capture_of(material: Material) -> Capture:
    assert material.capture is not None
    return material.capture


def replay(material: Material, step: int = 1) -> dict[str, ParameterUpdate]:
    decaying = material.weight_decay_names
    return replay_update(material.spec, capture_of(material), step, decaying=decaying, total_steps=material.total_steps)


def judge(material: Material, editing: Edit) -> Verdict:
    return step_update.judge(swap(material, editing.save()))


def group_of(editing: Edit, name: str, step: int = 1) -> dict[str, Any]:
    groups = editing.step(step)["optimizer"]["groups"]
    return next(group for group in groups if name in group["parameters"])


def test_a_healthy_run_passes_with_parameters_and_moments_of_both_steps(healthy: Material) -> None:
    verdict = step_update.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "25 parameters move as adamw defines, at steps 1 and 3"
    assert len(verdict.measurements) == 2 * 25 * 3
    assert {m.name for m in verdict.measurements if m.name.split(" (")[0].split(" of ")[-1] == NORM} == {
        f"{label}{NORM} (step {step})" for step in (1, 3) for label in ("", "exp_avg of ", "exp_avg_sq of ")
    }
    assert verdict.evidence["learning_rate"] == 1e-3
    assert verdict.evidence["settings"] == []
    assert {"q_proj", "norm", "lm_head", "embed_tokens"} <= set(verdict.detection_limits)
    updates = [replay(healthy, step) for step in (1, 3)]
    limit = max(
        9.0 * u[OUTPUT.replace("0", layer)].floor / u[OUTPUT.replace("0", layer)].norm
        for u in updates
        for layer in "01"
    )
    assert verdict.detection_limits["o_proj"] == pytest.approx(limit)


def test_a_measurement_is_relative_to_the_update(healthy: Material) -> None:
    update = replay(healthy)[OUTPUT]
    measurement = next(m for m in step_update.judge(healthy).measurements if m.name == f"{OUTPUT} (step 1)")
    assert measurement.value == pytest.approx(update.error / update.norm)
    assert measurement.floor == pytest.approx(update.floor / update.norm)
    assert measurement.threshold == pytest.approx(8.0 * update.floor / update.norm)
    assert measurement.limit == pytest.approx(9.0 * update.floor / update.norm)
    moment = next(m for m in step_update.judge(healthy).measurements if m.name == f"exp_avg of {OUTPUT} (step 1)")
    error, floor = update.moments["exp_avg"]
    assert (moment.value, moment.floor, moment.threshold, moment.limit) == (error, floor, 8.0 * floor, 9.0 * floor)


@pytest.mark.parametrize(("name", "step"), [(NORM, 1), (OUTPUT, 1), (UP, 3)])
def test_a_new_parameter_holds_up_to_its_threshold(healthy: Material, edit: Editor, name: str, step: int) -> None:
    update = replay(healthy, step)[name]

    def judged(ratio: float) -> Verdict:
        editing = edit(healthy.capture)
        sample = capture_of(healthy).tensors(step, "parameter_before")[name].read("sample")
        assert sample is not None
        error = torch.zeros_like(update.expected)
        error[::2] = 1.0
        after = sample.double() + update.expected + error * (ratio * 8.0 * update.floor / error.norm())
        return judge(healthy, editing.put_sample("parameter_after", name, after, step=step))

    assert judged(0.99).status is Status.PASS
    verdict = judged(1.01)
    assert verdict.status is Status.FAIL
    assert verdict.first_wrong == f"{name} (step {step})"
    assert verdict.sentence.startswith(
        f"1 updates or moments of step {step} differ from the definition, worst {name} (step {step}): off by "
    )
    assert verdict.pattern is Pattern.OBJECTIVE_SCALE


@pytest.mark.parametrize("field", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_moment_holds_up_to_its_threshold(healthy: Material, edit: Editor, field: str, sign: float) -> None:
    capture = capture_of(healthy)
    gradient = capture.tensors(1, "gradient")[OUTPUT].read("full")
    assert gradient is not None
    clipped = gradient.double() * expected_clip_factor(healthy.spec, capture, 1)
    exact = 0.1 * clipped if field == "exp_avg" else 0.001 * clipped.square()
    floor = replay(healthy)[OUTPUT].moments[field][1]

    def judged(ratio: float) -> Verdict:
        moved = exact * (1.0 + sign * ratio * 8.0 * floor)
        return judge(healthy, edit(healthy.capture).put("optimizer_state", OUTPUT, moved, field=field))

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.FAIL
    assert verdict.first_wrong == f"{field} of {OUTPUT} (step 1)"


def test_the_floor_is_what_the_runs_arithmetic_makes_of_the_definition_and_the_parameters_rounding(
    healthy: Material,
) -> None:
    record = capture_of(healthy).tensors(1, "parameter_before")[OUTPUT]
    update = replay(healthy)[OUTPUT]
    assert update.floor > 2.0**-24 * record.norm
    assert update.floor < 3.0 * 2.0**-24 * record.norm
    assert all(4.0 * 2.0**-24 < floor < 8.0 * 2.0**-24 for _, floor in update.moments.values())


def test_every_update_off_by_one_factor_is_said_so(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for name in editing.names("gradient"):
        before = editing.tensor("parameter_before", name).double()
        after = editing.tensor("parameter_after", name).double()
        editing.put("parameter_after", name, before + 0.5 * (after - before))
    verdict = judge(healthy, editing)
    assert verdict.sentence.startswith("25 updates or moments of step 1 differ from the definition")
    assert verdict.sentence.endswith("; every update is 0.5× the definition")
    one = edit(healthy.capture)
    before = one.tensor("parameter_before", NORM).double()
    one.change("parameter_after", NORM, lambda after: before + 0.5 * (after.double() - before))
    assert "every update" not in judge(healthy, one).sentence


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
    change(group_of(editing, OUTPUT, step))
    verdict = judge(healthy, editing)
    group = f"the group of {group_of(editing, OUTPUT, step)['parameters'][0]}"
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"{setting} of {group} is {shown}"
    assert verdict.first_wrong == f"{setting} of {group}"
    assert verdict.evidence["settings"] == [f"{setting} of {group} is {shown}".replace("1e-06", "1e-06")]


def test_a_setting_may_be_kept_in_float32_or_be_missing_altogether(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    group_of(editing, OUTPUT)["settings"]["lr"] = float(torch.tensor(1e-3, dtype=torch.float32))
    assert judge(healthy, editing).status is Status.PASS
    del group_of(editing, NORM)["settings"]["betas"]
    del group_of(editing, NORM)["settings"]["eps"]
    found = list(find_setting_mismatches(healthy, swap(healthy, edit_of(editing, edit)).capture, 1))  # type: ignore[arg-type]
    assert [m.setting for m in found] == ["eps", "beta1", "beta2"]
    assert {m.in_force for m in found} == {None}


def edit_of(editing: Edit, edit: Editor) -> Capture:
    """The edit's manifest, saved a second time beside the first."""
    again = Edit(Capture(editing.out, editing.manifest), editing.out.with_name(f"{editing.out.name}-again"))
    return again.save()


def test_weight_decay_on_norms_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    group = group_of(editing, NORM)
    assert group["settings"]["weight_decay"] == 0.0
    group["settings"]["weight_decay"] = 0.01
    verdict = judge(healthy, editing)
    norms = len(group["parameters"])
    first = group["parameters"][0]
    assert verdict.sentence == f"weight_decay of {norms} norm weights (first {first}) is 0.01, asked 0"
    assert verdict.first_wrong == f"weight_decay of {first}"


def test_missing_weight_decay_on_matrices_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    group = group_of(editing, OUTPUT)
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
    group_of(editing, NORM)["parameters"].remove(NORM)
    verdict = judge(healthy, editing)
    assert verdict.sentence == f"{NORM} is not trained: it is in no optimizer group (1 parameters in all)"
    assert (verdict.first_wrong, verdict.pattern) == (NORM, Pattern.OBJECTIVE_SCALE)


def test_a_frozen_parameter_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    group_of(editing, NORM)["parameters"].remove(NORM)
    editing.step()["trainable"].remove(NORM)
    editing.step()["frozen"].append(NORM)
    assert judge(healthy, editing).sentence == f"{NORM} is not trained: it is frozen (1 parameters in all)"


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


def test_adamws_first_update_alone_is_inconclusive(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit(healthy.capture).drop_step(3))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("only the first update was captured")
    assert len(verdict.measurements) == 75
    wrong = edit(healthy.capture).drop_step(3)
    group_of(wrong, NORM)["settings"]["lr"] = 1.0
    assert judge(healthy, wrong).status is Status.FAIL


def test_a_learning_rate_of_zero_at_every_captured_step_is_inconclusive(healthy: Material, edit: Editor) -> None:
    warming = replace(healthy, spec=replace(healthy.spec, warmup_steps=10))
    verdict = judge(warming, edit(healthy.capture).drop_step(3))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the learning rate is 0 at every captured step")
    # Step 3 of a warm-up has a rate, so it is judged and step 1 is not.
    assert step_update.judge(warming).evidence["step"] == 3


def test_a_step_without_parameters_on_both_sides_is_inconclusive(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for name in editing.names("parameter_after"):
        editing.drop("parameter_after", name)
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "step 1: no parameter was recorded before and after the update"
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_update.judge(crashed).sentence == "the run left no capture to judge; see run.completes"


def test_an_update_that_is_not_a_number_fails(healthy: Material, edit: Editor) -> None:
    nothing = torch.full((64,), float("nan"))
    assert judge(healthy, edit(healthy.capture).put("parameter_after", NORM, nothing)).status is Status.FAIL
    assert judge(healthy, edit(healthy.capture).put("gradient", NORM, nothing)).status is Status.FAIL


def test_an_update_that_drowns_in_the_parameters_rounding_is_inconclusive(healthy: Material, edit: Editor) -> None:
    # Weights held in bf16: the definition's change is far below what bf16 can add to them.
    tiny = replace(healthy.spec, precision="bf16_params", lr=1e-7)
    editing = edit(healthy.capture)
    for step in (1, 3):
        for group in editing.step(step)["optimizer"]["groups"]:
            group["settings"]["lr"] = 1e-7
        for name in editing.names("gradient", step=step):
            before = editing.tensor("parameter_before", name, step=step).clone()
            editing.put("parameter_after", name, before, step=step)
    verdict = judge(replace(healthy, spec=tiny), editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the update is smaller than the parameters' own rounding")
    floor = verdict.measurements[0].floor
    assert floor is not None
    assert verdict.measurements[0].threshold == pytest.approx(4.0 * floor)
    assert verdict.measurements[0].limit == pytest.approx(5.0 * floor)
    assert len(verdict.measurements) == 75


def test_a_parameter_that_should_not_move_is_measured_as_it_is(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    nothing = torch.zeros(64, dtype=torch.float64)
    editing.put("gradient", NORM, nothing)
    for field in ("exp_avg", "exp_avg_sq"):
        editing.put("optimizer_state", NORM, nothing, field=field)
    before = editing.tensor("parameter_before", NORM).double()
    editing.put("parameter_after", NORM, before + 1e-3)
    verdict = judge(healthy, editing)
    measurement = next(m for m in verdict.measurements if m.name == f"{NORM} (step 1)")
    assert measurement.value == pytest.approx(8e-3, rel=1e-9)
    assert measurement.threshold == pytest.approx(8.0 * 2.0**-24 * float(before.norm()))
    assert not measurement.holds
    assert not any(m.name == f"exp_avg of {NORM} (step 1)" for m in verdict.measurements)


def test_a_group_without_parameters_is_held_to_the_settings_too(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    groups = editing.step()["optimizer"]["groups"]
    groups.append({"settings": {**groups[0]["settings"], "lr": 0.5}, "parameters": []})
    assert judge(healthy, editing).sentence == "lr of an empty group is 0.5, asked 0.001"


def test_a_capture_without_a_step_is_inconclusive(healthy: Material, edit: Editor) -> None:
    verdict = step_update.judge(swap(healthy, edit(healthy.capture).drop_step(1).drop_step(3).save()))
    assert verdict.status is Status.INCONCLUSIVE
