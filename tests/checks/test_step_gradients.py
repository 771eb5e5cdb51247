"""step.gradients: each threshold from both sides, and what a failure is read as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_gradients
from checks.captures.blocks import WHOLE
from checks.captures.differences import Difference, project
from checks.material import Material
from checks.references.reference import Reference
from checks.tolerance import MULTIPLES, VERSION
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap
from tests.checks.exact import beside, exact_of

EMBEDDING = "model.embed_tokens.weight"


QUERY = "model.layers.0.self_attn.q_proj.weight"


NORM = "model.norm.weight"


HEAD = "lm_head.weight"


SOME = (EMBEDDING, QUERY, "model.layers.1.self_attn.k_norm.weight", "model.layers.1.mlp.down_proj.weight", NORM, HEAD)


def judge(material: Material, editing: Edit) -> Verdict:
    return step_gradients.judge(swap(material, editing.save()))


def put_all(editing: Edit, material: Material, gradient: Callable[[Reference, str], torch.Tensor]) -> Edit:
    for step, reference in material.references.items():
        for name in reference.gradients:
            editing.put("gradient", name, gradient(reference, name), step=step)
    return editing


def test_a_healthy_step_passes_with_every_gradient_measured(healthy: Material) -> None:
    verdict = step_gradients.judge(healthy)
    reference = first_reference(healthy)
    assert verdict.status is Status.PASS
    assert [m.name for m in verdict.measurements] == ["pooled scale", *reference.gradients]
    assert len(reference.gradients) == 25
    assert verdict.sentence.startswith("25 gradients agree with the plain float64 model of the published definition")
    assert {"scale of all", "q_proj", "q_proj by block", "norm", "lm_head by block"} <= set(verdict.detection_limits)
    assert verdict.shared_code == ()
    assert verdict.evidence["tolerance"] == VERSION
    assert verdict.evidence["step"] == 1
    assert verdict.evidence["variants"] == [v.name for v in reference.variants]
    assert min(verdict.evidence["cosines"].values()) > 1 - 1e-9
    low, high = verdict.evidence["scale_range"]
    assert 0.9999 < low <= min(verdict.evidence["scales"].values()) <= high < 1.0001
    assert 0.0 < max(verdict.evidence["ratios"].values()) <= 1.0


def test_the_evidence_keeps_the_worst_blocks_of_each_tensor(healthy: Material, edit: Editor) -> None:
    def enlarge(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        changed[size : 2 * size] *= 1.01
        return changed

    size = first_reference(healthy).gradients[QUERY].blocks.rows
    verdict = judge(healthy, edit(healthy.capture).change("gradient", QUERY, enlarge))
    blocks = verdict.evidence["blocks"]
    assert (blocks[QUERY]["kind"], blocks[QUERY]["count"]) == ("head", 4)
    index, error, norm, floor, threshold = blocks[QUERY]["worst"][1]
    assert index == 1
    assert error / norm == pytest.approx(0.01, rel=1e-3)
    assert threshold == pytest.approx(8.0 * floor)
    assert verdict.evidence["ratios"][QUERY] == pytest.approx(error / threshold)
    assert (blocks[EMBEDDING]["count"], len(blocks[EMBEDDING]["worst"])) == (512, 16)
    assert NORM not in blocks


def test_a_measurement_states_error_threshold_floor_and_limit_relative_to_its_gradient(
    healthy: Material, edit: Editor
) -> None:
    reference = first_reference(healthy)
    capture = edit(healthy.capture).put("gradient", NORM, beside(reference, NORM, 0.5)).save()
    verdict = step_gradients.judge(swap(healthy, capture))
    assert f"worst {NORM} at 0.5 of its threshold" in verdict.sentence
    measurement = next(m for m in verdict.measurements if m.name == NORM)
    assert measurement.block is None
    floor = reference.floor(NORM).total / reference.gradients[NORM].norm
    assert measurement.floor == pytest.approx(floor)
    assert measurement.threshold == pytest.approx(8.0 * floor)
    assert measurement.limit == pytest.approx(9.0 * floor)
    assert measurement.value == pytest.approx(4.0 * floor, rel=1e-6)
    pooled = verdict.measurements[0]
    variants = [
        abs(sum(d.dot for d in v.differences.values()) / sum(d.square for d in v.differences.values()) - 1.0)
        for v in reference.variants
    ]
    assert pooled.floor == pytest.approx(max(variants), rel=1e-6)
    assert pooled.threshold == pytest.approx(8.0 * (max(variants) + 2.0**-24), rel=1e-6)


@pytest.mark.parametrize("name", SOME)
def test_a_gradient_above_its_own_threshold_fails_and_is_named(healthy: Material, edit: Editor, name: str) -> None:
    editing = edit(healthy.capture).put("gradient", name, beside(first_reference(healthy), name, 1.001))
    verdict = judge(healthy, editing)
    assert verdict.status is Status.FAIL
    assert verdict.first_wrong == name
    assert verdict.sentence.startswith(f"only {name} differs (worst {name}: error ")
    assert [m.name for m in verdict.measurements if not m.holds] == [name]


def test_gradients_just_below_their_thresholds_pass_all_at_once(healthy: Material, edit: Editor) -> None:
    editing = put_all(edit(healthy.capture), healthy, lambda reference, name: beside(reference, name, 0.999))
    assert judge(healthy, editing).status is Status.PASS


def test_a_later_step_is_judged_as_the_first_is(healthy: Material, edit: Editor) -> None:
    reference = healthy.references[3]
    editing = edit(healthy.capture).put("gradient", NORM, beside(reference, NORM, 1.001), step=3)
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.first_wrong, verdict.evidence["step"]) == (Status.FAIL, NORM, 3)


def test_the_multiple_is_that_of_the_runs_precision(healthy: Material, edit: Editor) -> None:
    material = swap(
        healthy, edit(healthy.capture).put("gradient", NORM, beside(first_reference(healthy), NORM, 0.6)).save()
    )
    assert step_gradients.judge(material).status is Status.PASS
    assert MULTIPLES["bf16"] < 0.6 * 8.0 < MULTIPLES["float32"]
    in_bf16 = replace(material, spec=replace(material.spec, precision="bf16"))
    assert step_gradients.judge(in_bf16).first_wrong == NORM


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_scale_that_no_single_gradient_shows_is_seen_by_the_pooled_one(
    healthy: Material, edit: Editor, sign: float
) -> None:
    threshold = step_gradients.judge(healthy).measurements[0].threshold

    def scaled(ratio: float) -> Verdict:
        c = 1.0 + sign * ratio * threshold
        editing = edit(healthy.capture)
        for name in first_reference(healthy).gradients:
            editing.put("gradient", name, c * exact_of(first_reference(healthy), name))
        return judge(healthy, editing)

    assert scaled(0.99).status is Status.PASS
    verdict = scaled(1.01)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("the pooled scale of all gradients is ")
    assert [m.name for m in verdict.measurements if not m.holds] == ["pooled scale"]
    assert verdict.measurements[0].value == pytest.approx(1.01 * threshold, rel=1e-4)
    assert verdict.pattern is Pattern.OBJECTIVE_SCALE


def test_gradients_of_half_their_size_are_said_to_be_a_wrong_count(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for name in first_reference(healthy).gradients:
        editing.change("gradient", name, lambda gradient: 0.5 * gradient)
    verdict = judge(healthy, editing)
    assert verdict.sentence.startswith("every gradient is 0.5× the reference, cosine 1.000 from embedding to head")
    assert verdict.evidence["scale"] == pytest.approx(0.5, rel=1e-5)
    assert verdict.evidence["scale_range"] == pytest.approx([0.5, 0.5], rel=1e-5)


@pytest.mark.parametrize(("name", "rows", "block"), [(QUERY, slice(16, 32), 1), (HEAD, slice(7, 8), 7)])
def test_one_head_or_row_is_seen_where_the_whole_gradient_is_within_its_threshold(
    healthy: Material, edit: Editor, name: str, rows: slice, block: int
) -> None:
    reference = first_reference(healthy)
    floor = reference.floor(name)

    def scaled(ratio: float) -> Verdict:
        gradient = exact_of(reference, name).clone()
        gradient[rows] *= 1.0 + ratio * 8.0 * float(floor.blocks[block]) / float(gradient[rows].norm())
        assert float((gradient - exact_of(reference, name)).norm()) < 8.0 * floor.total
        return judge(healthy, edit(healthy.capture).put("gradient", name, gradient))

    assert scaled(0.999).status is Status.PASS
    verdict = scaled(1.001)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(f"only {name} differs, worst in block {block} (")
    assert next(m for m in verdict.measurements if m.name == name).block == str(block)


def test_a_missing_gradient_fails_and_is_named(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit(healthy.capture).drop("gradient", NORM).drop("gradient", HEAD))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"2 parameters that the loss depends on received no gradient, first {NORM}"
    assert (verdict.first_wrong, verdict.evidence["absent"]) == (NORM, [NORM, HEAD])


def test_a_missing_gradient_that_is_zero_by_definition_is_no_fault(healthy: Material, edit: Editor) -> None:
    reference = first_reference(healthy)
    size = reference.floor(NORM).total / 8.0  # absolute part included, so well above what the noise alone would be

    def without(norm: float) -> Verdict:
        exact = torch.full((64,), norm / 8.0, dtype=torch.float64)
        gradients = {**reference.gradients, NORM: project(NORM, exact, WHOLE)}
        material = replace(healthy, references={1: replace(reference, gradients=gradients)})
        return judge(material, edit(healthy.capture).drop("gradient", NORM).drop_step(3))

    assert without(size).status is Status.PASS
    assert without(100.0 * size).first_wrong == NORM


def test_without_a_reference_there_is_no_verdict(healthy: Material) -> None:
    bare = replace(healthy, references={}, no_reference={1: "dropout is on"})
    assert step_gradients.judge(bare).status is Status.INCONCLUSIVE
    assert step_gradients.judge(bare).sentence == "dropout is on"
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_gradients.judge(crashed).sentence == "the run left no capture to judge; see run.completes"


def noisy(material: Material, change: Callable[[Reference, str, Difference], Difference]) -> Material:
    """The material with one variant, made of the first one's differences."""
    reference = first_reference(material)
    variant = reference.variants[0]
    differences: Mapping[str, Difference] = {n: change(reference, n, d) for n, d in variant.differences.items()}
    with_noise = replace(reference, variants=(replace(variant, differences=differences),))
    return replace(material, references={reference.step: with_noise})


def test_noise_that_would_hide_a_scale_of_five_percent_is_no_pass(healthy: Material) -> None:
    def judged(limit: float) -> Verdict:
        c = 1.0 + (limit - 8.0 * 2.0**-24) / 9.0
        return step_gradients.judge(noisy(healthy, lambda r, n, d: replace(d, dot=c * d.square)))

    assert judged(0.0499).status is Status.PASS
    verdict = judged(0.0501)
    assert verdict.status is Status.INCONCLUSIVE
    assert "the noise would hide a scale error of 0.05" in verdict.sentence
    assert "run with precision=float32" in verdict.sentence
    assert verdict.detection_limits["scale of all"] == pytest.approx(0.0501)


def test_noise_that_would_hide_half_of_the_tensors_is_no_pass(healthy: Material) -> None:
    def judged(limit: float) -> Verdict:
        def change(reference: Reference, name: str, d: Difference) -> Difference:
            return replace(d, error=limit * d.norm / 9.0 - reference.floor(name).absolute)

        return step_gradients.judge(noisy(healthy, change))

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("and, in half of the tensors, one of 1; run with precision=float32")
    assert len(verdict.measurements) == 26


@pytest.mark.parametrize("values", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_fails(healthy: Material, edit: Editor, values: float) -> None:
    editing = edit(healthy.capture).put("gradient", NORM, torch.full((64,), values))
    capture = editing.save()
    assert step_gradients.judge(swap(healthy, capture)).status is Status.FAIL
    assert judge(healthy, edit(capture).keep_sketches()).status is Status.FAIL


def test_a_gradient_whose_reference_is_zero_is_measured_as_it_is(healthy: Material, edit: Editor) -> None:
    reference = first_reference(healthy)
    zero = project(NORM, torch.zeros(64, dtype=torch.float64), WHOLE)
    variants = tuple(
        replace(v, differences={n: d for n, d in v.differences.items() if n != NORM}) for v in reference.variants
    )
    emptied = replace(reference, gradients={**reference.gradients, NORM: zero}, variants=variants)
    material = replace(healthy, references={1: emptied})
    floor = emptied.floor(NORM).total
    assert floor == pytest.approx(2.0**-24 * (64 * emptied.mean_square) ** 0.5)

    def judged(ratio: float) -> Verdict:
        gradient = torch.full((64,), ratio * 8.0 * floor / 8.0, dtype=torch.float64)
        return judge(material, edit(healthy.capture).put("gradient", NORM, gradient).drop_step(3))

    held = judged(0.999)
    assert held.status is Status.PASS
    measurement = next(m for m in held.measurements if m.name == NORM)
    assert [measurement.value, measurement.threshold] == pytest.approx([0.999 * 8.0 * floor, 8.0 * floor])
    assert judged(1.001).first_wrong == NORM
