"""step.settings: one element of a weight, one setting of a module, each dtype and kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.architecture import step_settings
from checks.architecture.step_settings import compare_scalars
from checks.material import Material
from checks.references.reference import root_config
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap

NORM = "model.norm.weight"
UP = "model.layers.1.mlp.up_proj.weight"


def judge(material: Material, editing: Edit) -> Verdict:
    return step_settings.judge(swap(material, editing.save()))


def add_to_one(amount: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(weight: torch.Tensor) -> torch.Tensor:
        changed = weight.double()
        changed.view(-1)[17] += amount
        return changed

    return change


def scaled(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda weight: factor * weight.double()


def test_a_healthy_model_has_the_checkpoints_weights_and_the_configs_settings(healthy: Material) -> None:
    verdict = step_settings.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "25 weights are the checkpoint's, 12 modules have the config's settings"
    assert [m.name for m in verdict.measurements[-2:]] == [
        "scalar settings that differ",
        "dtypes and kernels that differ",
    ]
    assert len(verdict.measurements) == 27
    assert verdict.measurements[0].value <= verdict.measurements[0].threshold == 1e-13
    assert verdict.detection_limits == {"weights": 2e-13}


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("name", [NORM, UP])
def test_one_element_of_a_weight_shows_by_sketch_and_in_full(
    healthy: Material, edit: Editor, name: str, sketched: bool
) -> None:
    editing = edit(healthy.capture).change("parameter_before", name, add_to_one(1e-3))
    verdict = judge(healthy, editing.keep_sketches() if sketched else editing)
    norm = first_reference(healthy).weights[name].norm
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"{name} differs from the checkpoint by {1e-3 / norm:.3g} of its norm"
    assert (verdict.first_wrong, verdict.pattern) == (name, Pattern.STATE_TRANSFER)
    assert [m.name for m in verdict.measurements if not m.holds] == [name]
    assert verdict.evidence["weights_off"][name]["relative"] == pytest.approx(1e-3 / norm)


def test_a_weight_holds_up_to_the_rounding_of_its_sketch(healthy: Material, edit: Editor) -> None:
    norm = first_reference(healthy).weights[UP].norm
    assert norm > 1.0

    def judged(amount: float) -> Verdict:
        return judge(healthy, edit(healthy.capture).change("parameter_before", UP, add_to_one(amount)))

    assert judged(0.9e-13 * norm).status is Status.PASS
    assert judged(1.1e-13 * norm).status is Status.FAIL


def test_a_small_weights_rounding_is_that_of_one(healthy: Material, edit: Editor) -> None:
    reference = first_reference(healthy)
    small = replace(reference.weights[UP], full=torch.zeros(128, 64, dtype=torch.float64), norm=0.0)
    material = replace(healthy, references={1: replace(reference, weights={**reference.weights, UP: small})})

    def judged(amount: float) -> Verdict:
        weight = torch.zeros(128, 64, dtype=torch.float64)
        weight[3, 4] = amount
        return judge(material, edit(healthy.capture).put("parameter_before", UP, weight))

    assert judged(0.9e-13).status is Status.PASS
    assert judged(1.1e-13).status is Status.FAIL


@pytest.mark.parametrize("factor", [1.001, 0.999])
def test_a_weight_that_is_a_multiple_is_said_so(healthy: Material, edit: Editor, factor: float) -> None:
    verdict = judge(healthy, edit(healthy.capture).change("parameter_before", UP, scaled(factor)))
    assert verdict.sentence == f"{UP} is {factor}× the checkpoint's"


def test_a_weight_turned_a_little_is_no_multiple(healthy: Material, edit: Editor) -> None:
    # cos = 1 − relative² / 2: 5e-5 of the norm is 1.25e-9 off, 4e-5 is 0.8e-9.
    norm = first_reference(healthy).weights[UP].norm
    for relative, expected in ((5e-5, "differs from"), (4e-5, "is 1×")):
        editing = edit(healthy.capture).change("parameter_before", UP, add_to_one(relative * norm))
        assert expected in judge(healthy, editing).sentence


def test_a_weight_that_is_not_a_number_fails(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).put("parameter_before", NORM, torch.full((64,), float("nan")))
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, NORM)


def test_many_problems_are_counted_after_the_first_three(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    names = list(first_reference(healthy).weights)[:5]
    for name in names:
        editing.change("parameter_before", name, scaled(1.001))
    verdict = judge(healthy, editing)
    assert verdict.sentence == "; ".join(f"{name} is 1.001× the checkpoint's" for name in names[:3]) + " (and 2 more)"


def test_a_parameter_that_the_checkpoint_does_not_have_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).rename("parameter_before", NORM, "model.norm.bias")
    verdict = judge(healthy, editing)
    assert verdict.sentence == "model.norm.bias is not in the checkpoint"
    assert (verdict.first_wrong, verdict.pattern) == ("model.norm.bias", Pattern.STATE_TRANSFER)
    adapter = edit(healthy.capture).rename("parameter_before", NORM, "model.q_proj.lora_A.weight")
    assert judge(healthy, adapter).status is Status.PASS


def test_a_weight_of_the_checkpoint_that_the_model_never_had_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).drop("parameter_before", NORM)
    assert judge(healthy, editing).status is Status.PASS  # known to the model, only not recorded
    editing = edit(healthy.capture).drop("parameter_before", NORM)
    editing.step()["trainable"].remove(NORM)
    verdict = judge(healthy, editing)
    assert verdict.sentence == f"{NORM} of the checkpoint is not in the model"
    assert verdict.first_wrong == NORM
    frozen = edit(healthy.capture)
    frozen.step()["trainable"].remove(NORM)
    frozen.step()["frozen"].append(NORM)
    assert judge(healthy, frozen).status is Status.PASS


def test_a_setting_of_a_module_that_the_config_does_not_ask_is_named(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    scalars = editing.step()["scalars"]
    scalars["model.norm"]["variance_epsilon"] = 1e-5
    verdict = judge(healthy, editing)
    assert verdict.sentence == "variance_epsilon of model.norm is 1e-05, asked 1e-06"
    assert (verdict.first_wrong, verdict.pattern) == ("model.norm.variance_epsilon", Pattern.MODEL_DEFINITION)
    assert verdict.evidence["scalars"] == [["model.norm", "variance_epsilon", 1e-6, 1e-5]]
    norms = [path for path, attributes in scalars.items() if "variance_epsilon" in attributes]
    again = edit(healthy.capture)
    for path in norms:
        again.step()["scalars"][path]["variance_epsilon"] = 1e-5
    every = judge(healthy, again)
    assert every.measurements[-2].value == len(norms) == 9
    assert f" and of {len(norms) - 1} other modules is 1e-05, asked 1e-06" in every.sentence


@pytest.mark.parametrize(("factor", "status"), [(1 + 1e-5, Status.FAIL), (1 + 1e-8, Status.PASS)])
def test_a_table_of_frequencies_may_differ_by_its_float32_rounding(
    healthy: Material, edit: Editor, factor: float, status: Status
) -> None:
    editing = edit(healthy.capture)
    rotary = editing.step()["scalars"]["model.rotary_emb"]
    rotary["inv_freq"] = [*rotary["inv_freq"][:-1], rotary["inv_freq"][-1] * factor]
    verdict = judge(healthy, editing)
    assert verdict.status is status
    if status is Status.FAIL:
        assert verdict.sentence.startswith("inv_freq of model.rotary_emb is [1, 0.316228, 0.1, …], asked [1, ")


@pytest.mark.parametrize(
    ("asked", "in_force", "differs"),
    [
        (0.125, 0.125 * (1 + 2e-9), True),
        (0.125, 0.125 * (1 + 5e-10), False),
        (0.0, 1e-300, True),
        (4, 4.0, False),
        (True, 1, False),
        (True, 2, True),
        (False, 0.0, False),
        ("default", "yarn", True),
        ("default", "default", False),
        (None, 0.0, True),
        ([1.0, 0.5], [1.0, 0.5 * (1 + 2e-6)], True),
        ([1.0, 0.5], [1.0, 0.5 * (1 + 5e-7)], False),
        ([1.0, 0.5], [1.0], True),
        ([0.0], [1e-12], True),
    ],
)
def test_scalars_are_compared_by_kind(asked: object, in_force: object, differs: bool) -> None:
    found = list(compare_scalars({"m": {"a": in_force}}, {"m": {"a": asked}}))
    assert [(m.module, m.attribute, m.asked, m.in_force) for m in found] == (
        [("m", "a", asked, in_force)] if differs else []
    )


def test_only_what_both_sides_know_and_what_is_computed_is_compared() -> None:
    expected: dict[str, dict[str, object]] = {
        "a": {"eps": 1e-6, "training": False, "layer_idx": 3, "gradient_checkpointing": False, "use_cache": True},
        "b": {"eps": 1e-6},
    }
    running: dict[str, dict[str, object]] = {
        "a": {"training": True, "layer_idx": 0, "gradient_checkpointing": True, "use_cache": False, "other": 1.0},
        "c": {"eps": 1.0},
    }
    assert list(compare_scalars(running, expected)) == []


def set_model(**changes: Any) -> Callable[[Edit], None]:
    return lambda editing: editing.step()["model"].update(changes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            set_model(parameter_dtypes={"torch.float32": 24, "torch.bfloat16": 1}),
            "parameters are held in other dtypes than float32: 1 in bfloat16",
        ),
        (set_model(autocast="torch.bfloat16"), "autocast is torch.bfloat16, asked None"),
        (set_model(attention="eager"), "attention is eager, asked sdpa"),
        (set_model(training=False), "the model runs in evaluation mode"),
    ],
)
def test_a_silent_change_of_dtype_kernel_or_mode_is_named(
    healthy: Material, edit: Editor, change: Callable[[Edit], None], sentence: str
) -> None:
    editing = edit(healthy.capture)
    change(editing)
    verdict = judge(healthy, editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence == sentence
    assert (verdict.first_wrong, verdict.pattern) == ("dtypes", Pattern.MODEL_DEFINITION)
    assert verdict.measurements[-1].value == 1.0


def test_dtypes_and_autocast_follow_the_precision_that_was_asked(healthy: Material, edit: Editor) -> None:
    mixed = replace(healthy, spec=replace(healthy.spec, precision="bf16"))
    assert step_settings.judge(mixed).sentence == "autocast is None, asked torch.bfloat16"
    editing = edit(healthy.capture)
    set_model(autocast="torch.bfloat16")(editing)
    assert judge(mixed, editing).status is Status.PASS
    low = replace(healthy, spec=replace(healthy.spec, precision="bf16_params"))
    assert step_settings.judge(low).sentence == "parameters are held in other dtypes than bfloat16: 25 in float32"


def test_an_attention_that_the_model_does_not_state_is_not_compared(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    set_model(attention=None)(editing)
    assert judge(healthy, editing).status is Status.PASS


def test_without_step_1_or_a_reference_there_is_no_verdict(healthy: Material, edit: Editor) -> None:
    late = judge(healthy, edit(healthy.capture).drop_step(1))
    assert late.status is Status.INCONCLUSIVE
    assert late.sentence.startswith("step 1 was not captured")
    assert judge(healthy, edit(healthy.capture).drop_step(1).drop_step(3)).status is Status.INCONCLUSIVE
    bare = replace(healthy, references={}, no_reference={1: "dropout is on"})
    assert step_settings.judge(bare).sentence == "dropout is on"
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_settings.judge(crashed).sentence == "the run left no capture to judge; see run.completes"


def test_weights_that_were_not_recorded_leave_it_open(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for name in editing.names("parameter_before"):
        editing.drop("parameter_before", name)
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "no parameter of the checkpoint was recorded"


def test_the_config_in_force_is_the_root_modules(healthy: Material, edit: Editor) -> None:
    assert healthy.capture is not None
    config = root_config(healthy.capture, 1)
    assert (config["head_dim"], config["num_attention_heads"], config["vocab_size"]) == (16, 4, 512)
    editing = edit(healthy.capture)
    del editing.step()["scalars"][""]["config"]
    assert root_config(editing.save(), 1) == {}
