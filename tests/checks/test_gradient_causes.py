"""step.gradients: what wrong gradients are read as, and router choices that are judged apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_gradients
from checks.diagnosis.first_divergence import Divergence, ModuleError
from checks.material import Material
from checks.references.reference import Reference
from checks.references.routing import ChoiceError
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap
from tests.checks.exact import beside, exact_of

NORM = "model.norm.weight"


def judge(material: Material, editing: Edit) -> Verdict:
    return step_gradients.judge(swap(material, editing.save()))


def put_all(editing: Edit, material: Material, gradient: Callable[[Reference, str], torch.Tensor]) -> Edit:
    for step, reference in material.references.items():
        for name in reference.gradients:
            editing.put("gradient", name, gradient(reference, name), step=step)
    return editing


def test_a_clip_before_accumulation_ended_is_the_cause_of_wrong_gradients(healthy: Material, edit: Editor) -> None:
    def judged(after_backward: int, factor: float) -> Verdict:
        editing = edit(healthy.capture).change("gradient", NORM, lambda gradient: factor * gradient)
        editing.step()["clips"][0]["after_backward"] = after_backward
        return judge(healthy, editing)

    early = judged(1, 0.5)
    assert early.sentence.startswith("gradients were clipped after micro-batch 1 of 2, before accumulation ended")
    assert early.first_wrong == "gradient clipping"
    assert judged(2, 0.5).first_wrong == NORM
    assert judged(1, 1.0).status is Status.PASS


def test_misplaced_targets_are_the_cause_of_wrong_gradients(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).change("gradient", NORM, lambda gradient: 0.5 * gradient)
    for index in (0, 1):
        counted = editing.tensor("target", "target", micro_batch=index) != -100
        ids = editing.tensor("batch", "input_ids", micro_batch=index)
        shifted = torch.where(counted, torch.roll(ids, -2, dims=1), -100)
        editing.put("target", "target", shifted, micro_batch=index)
    verdict = judge(healthy, editing)
    assert verdict.sentence.startswith("labels are shifted twice")
    assert verdict.first_wrong == "labels"


def test_a_forward_that_agrees_points_to_the_backward_of_a_layer(healthy: Material, edit: Editor) -> None:
    reference = first_reference(healthy)

    def judged(token_ratio: float) -> Verdict:
        editing = edit(healthy.capture)
        for name in (n for n in reference.gradients if ".layers.0." in n):
            editing.put("gradient", name, beside(reference, name, 10.0))
        losses = reference.token_losses[1].clone()
        losses[0, 10] += token_ratio * 8.0 * reference.token_floor
        editing.put("token_loss", "token_loss", losses, micro_batch=1)
        return judge(healthy, editing)

    agreeing = judged(0.999)
    assert agreeing.sentence.startswith("the forward agrees and the gradients differ from layer 0 down to the input")
    assert agreeing.first_wrong == "model.layers.0"
    assert judged(1.001).sentence.startswith("11 of 25 gradients differ in direction")


def test_token_losses_that_were_not_recorded_leave_the_forward_open(healthy: Material, edit: Editor) -> None:
    reference = first_reference(healthy)
    editing = edit(healthy.capture).drop("token_loss", "token_loss", micro_batch=0)
    for name in (n for n in reference.gradients if ".layers.0." in n):
        editing.put("gradient", name, beside(reference, name, 10.0))
    assert judge(healthy, editing).sentence.startswith("11 of 25 gradients differ in direction")


def test_the_first_wrong_module_of_a_second_pass_is_named_first(healthy: Material, edit: Editor) -> None:
    modules = (
        ModuleError("model.embed_tokens", "Embedding", 0.0, 1e-7, 8e-7),
        ModuleError("model.layers.0.input_layernorm", "Qwen3RMSNorm", 0.01, 1e-7, 8e-7),
    )
    material = replace(healthy, divergence=Divergence(modules, (), True))
    verdict = judge(material, edit(healthy.capture).change("gradient", NORM, lambda gradient: 0.5 * gradient))
    assert verdict.sentence.startswith(
        "the forward first differs in model.layers.0.input_layernorm (Qwen3RMSNorm): on its own inputs its output is "
        f"off by 0.01, allowed 8e-07; only {NORM} differs"
    )
    assert (verdict.first_wrong, verdict.pattern) == ("model.layers.0.input_layernorm", Pattern.MODEL_DEFINITION)
    assert [m["holds"] for m in verdict.evidence["modules"]] == [True, False]
    assert [m["floor"] for m in verdict.evidence["modules"]] == [1e-7, 1e-7]


def test_a_forward_that_moves_late_tokens_only_points_to_the_sequence_length(healthy: Material, edit: Editor) -> None:
    modules = (ModuleError("model.rotary_emb", "Qwen3RotaryEmbedding", 0.01, 1e-7, 8e-7),)
    material = replace(healthy, divergence=Divergence(modules, (), True))

    def judged(position: int, ratio: float) -> Verdict:
        reference = first_reference(healthy)
        losses = reference.token_losses[1].clone()
        losses[0, position] += ratio * 8.0 * reference.token_floor
        editing = edit(healthy.capture).put("token_loss", "token_loss", losses, micro_batch=1)
        return judge(material, editing.change("gradient", NORM, lambda gradient: 0.5 * gradient))

    assert judged(20, 1.001).pattern is Pattern.SEQUENCE_LENGTH
    assert judged(20, 0.999).pattern is Pattern.MODEL_DEFINITION
    assert judged(2, 1.001).pattern is Pattern.MODEL_DEFINITION


def test_other_experts_pass_only_where_the_score_lost_by_less_than_twice_the_multiple_of_its_noise(
    healthy: Material, edit: Editor
) -> None:
    router = "model.layers.1.mlp.gate"

    def judged(margin: float, material: Material = healthy) -> Verdict:
        choices = (ChoiceError("model.layers.0.mlp.gate", 335, 0, 0.0, 1e-6), ChoiceError(router, 335, 3, margin, 1e-6))
        reference = replace(first_reference(material), choices=choices)
        return step_gradients.judge(replace(material, references={1: reference}))

    assert judged(2.0 * 8.0 * 1e-6).status is Status.PASS
    held = judged(1.599e-5)
    assert held.status is Status.PASS
    measurement = held.measurements[-1]
    assert measurement.name == f"experts chosen by {router} (3 of 335 tokens differ)"
    assert (measurement.value, measurement.floor, measurement.unit) == (1.599e-5, 1e-6, "score")
    assert measurement.threshold == pytest.approx(1.6e-5)
    verdict = judged(1.601e-5)
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        f"{router} chose other experts than its scores say for 3 of 335 tokens, by a margin of up to 1.6e-05 where "
        "the scores' noise is 1e-06; given those experts every gradient agrees"
    )
    assert (verdict.first_wrong, verdict.pattern) == (router, Pattern.MODEL_DEFINITION)
    wrong = swap(
        healthy, edit(healthy.capture).put("gradient", NORM, beside(first_reference(healthy), NORM, 2.0)).save()
    )
    assert judged(1.601e-5, wrong).first_wrong == NORM
    scaled = put_all(edit(healthy.capture), healthy, lambda r, name: (1.0 + 1.5e-6) * exact_of(r, name))
    assert judged(1.601e-5, swap(healthy, scaled.save())).sentence.startswith("the pooled scale of all gradients is")


def test_a_second_pass_that_did_not_repeat_the_first_names_no_module(healthy: Material, edit: Editor) -> None:
    modules = (ModuleError("model.layers.0.mlp", "Qwen3MLP", 0.01, 1e-7, 8e-7),)
    material = replace(healthy, divergence=Divergence(modules, (), False))
    verdict = judge(material, edit(healthy.capture).change("gradient", NORM, lambda gradient: 0.5 * gradient))
    assert verdict.first_wrong == NORM
    assert verdict.sentence.startswith(f"only {NORM} differs (")
    assert verdict.sentence.endswith(
        "; a second pass did not repeat the step's gradients: the run is not deterministic"
    )


def test_the_router_whose_choice_lost_by_most_is_named_among_those_that_lost_by_too_much(healthy: Material) -> None:
    choices = (
        ChoiceError("model.layers.0.mlp.gate", 335, 1, 5e-5, 1e-5),  # within its own noise
        ChoiceError("model.layers.1.mlp.gate", 335, 1, 2e-5, 1e-6),
        ChoiceError("model.layers.2.mlp.gate", 335, 1, 3e-5, 1e-6),
    )
    reference = replace(first_reference(healthy), choices=choices)
    verdict = step_gradients.judge(replace(healthy, references={1: reference}))
    assert verdict.first_wrong == "model.layers.2.mlp.gate"
    assert [m.holds for m in verdict.measurements[-3:]] == [True, False, False]


def test_late_tokens_say_nothing_where_some_losses_were_not_recorded(healthy: Material, edit: Editor) -> None:
    modules = (ModuleError("model.rotary_emb", "Qwen3RotaryEmbedding", 0.01, 1e-7, 8e-7),)
    reference = first_reference(healthy)
    losses = reference.token_losses[1].clone()
    losses[0, 20] += 1.0
    editing = edit(healthy.capture).put("token_loss", "token_loss", losses, micro_batch=1)
    editing.drop("token_loss", "token_loss", micro_batch=0)
    editing.change("gradient", NORM, lambda gradient: 0.5 * gradient)
    verdict = judge(replace(healthy, divergence=Divergence(modules, (), True)), editing)
    assert (verdict.first_wrong, verdict.pattern) == ("model.rotary_emb", Pattern.MODEL_DEFINITION)
