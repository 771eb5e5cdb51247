"""step.settings: one element of a weight, one setting of a module, each dtype and kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.architecture import step_settings
from checks.material import Material
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
    assert verdict.measurements[0].limit == 2e-13
    assert [m.threshold for m in verdict.measurements[-2:]] == [0.0, 0.0]
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
    assert (verdict.first_wrong, verdict.pattern) == (NORM, Pattern.STATE_TRANSFER)
    silent = edit(healthy.capture).drop("parameter_before", NORM)
    silent.step()["trainable"].clear()
    assert judge(healthy, silent).status is Status.PASS  # a record that names no parameter says nothing
    frozen = edit(healthy.capture)
    frozen.step()["trainable"].remove(NORM)
    frozen.step()["frozen"].append(NORM)
    assert judge(healthy, frozen).status is Status.PASS


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


def test_adapters_are_no_weights_of_the_checkpoint(healthy: Material, edit: Editor) -> None:
    adapter = "model.layers.0.self_attn.q_proj.lora_A.weight"
    reference = first_reference(healthy)
    weights = {**reference.weights, adapter: replace(reference.weights[NORM], name=adapter)}
    material = replace(healthy, references={1: replace(reference, weights=weights)})
    assert step_settings.judge(material).status is Status.PASS
    renamed = edit(healthy.capture).rename("parameter_before", NORM, adapter)
    renamed.change("parameter_before", adapter, scaled(2.0))
    assert judge(material, renamed).status is Status.PASS


def test_what_the_class_keeps_in_float32_is_as_asked_there_and_nowhere_else(healthy: Material, edit: Editor) -> None:
    kept = frozenset({"model.norm.weight"})
    low = replace(healthy, spec=replace(healthy.spec, precision="bf16_params"), float32_names=kept)

    def said(dtypes: dict[str, int], norm: str) -> str:
        editing = edit(healthy.capture)
        set_model(parameter_dtypes=dtypes)(editing)
        editing.entry("parameter_before", "model.norm.weight")["dtype"] = norm
        return judge(low, editing).sentence

    assert "dtypes" not in said({"torch.bfloat16": 24, "torch.float32": 1}, "torch.float32")
    assert said({"torch.bfloat16": 23, "torch.float32": 2}, "torch.float32") == (
        "parameters are held in other dtypes than bfloat16: 2 in float32"
    )
    assert said({"torch.bfloat16": 25}, "torch.bfloat16") == (
        "model.norm.weight is held in bfloat16, which its class keeps in float32"
    )


def ask_padding(material: Material) -> Material:
    """A config that keeps row 0 of the embedding out of training."""
    asked = {**material.expected_scalars, "model.embed_tokens": {"padding_idx": 0}}
    return replace(material, expected_scalars=asked)


def run_without_padding(editing: Edit, in_force: int | None = None) -> Edit:
    editing.step()["scalars"]["model.embed_tokens"] = {"class": "Embedding", "padding_idx": in_force}
    return editing


def test_a_padding_row_that_is_trained_is_named_only_where_it_had_something_to_learn(
    healthy: Material, edit: Editor
) -> None:
    editing = run_without_padding(edit(healthy.capture))
    verdict = judge(ask_padding(healthy), editing)
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith(
        "; model.embed_tokens.padding_idx is None, asked 0, without effect on this step: that row has no gradient"
    )
    assert verdict.evidence["without_effect"] == [["model.embed_tokens", "padding_idx", 0, None]]

    def learn(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        changed[0, 3] = 1e-9
        return changed

    again = run_without_padding(edit(healthy.capture))
    verdict = judge(ask_padding(healthy), again.change("gradient", "model.embed_tokens.weight", learn))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == "padding_idx of model.embed_tokens is None, asked 0"


def test_another_padding_row_is_named_whatever_it_learned(healthy: Material, edit: Editor) -> None:
    editing = run_without_padding(edit(healthy.capture), in_force=5)
    assert judge(ask_padding(healthy), editing).sentence == "padding_idx of model.embed_tokens is 5, asked 0"
