"""step.accumulation: the split run against the merged one, from both sides of the threshold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_accumulation
from checks.architecture.step_accumulation import compare_records
from checks.captures.capture import Capture
from checks.material import Material
from checks.references.reference import Reference
from checks.roles import Role
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap, swap_merged

NORM = "model.norm.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def merged_of(material: Material) -> Capture:
    merged = material.capture_of(Role.MERGED)
    assert merged is not None
    return merged


def judge(material: Material, editing: Edit) -> Verdict:
    return step_accumulation.judge(swap_merged(material, editing.save()))


def beside(reference: Reference, ours: torch.Tensor, name: str, ratio: float) -> torch.Tensor:
    """The split run's gradient with an orthogonal error of `ratio` thresholds of this check."""
    gradient = ours.double()
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise -= float((noise * gradient).sum() / gradient.square().sum()) * gradient
    return gradient + noise * (ratio * 16.0 * reference.floor(name).total / float(noise.norm()))


def split_gradient(material: Material, name: str) -> torch.Tensor:
    assert material.capture is not None
    gradient = material.capture.tensors(1, "gradient")[name].read("full")
    assert gradient is not None
    return gradient


def test_healthy_runs_pass_with_every_gradient_and_the_scale(healthy: Material) -> None:
    verdict = step_accumulation.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("2 micro-batches and 1 of the same rows give the same 25 gradients, within ")
    assert [m.name for m in verdict.measurements] == ["pooled scale", *first_reference(healthy).gradients]
    assert verdict.evidence["micro_batches"] == (2, 1)
    assert verdict.evidence["only_in_one"] == []
    assert min(verdict.evidence["cosines"].values()) > 1 - 1e-9
    assert max(verdict.evidence["scales"].values()) == pytest.approx(1.0, abs=1e-5)
    assert "q_proj" in verdict.detection_limits
    measurement = verdict.measurements[-1]
    floor = first_reference(healthy).floor("lm_head.weight").total / float(
        split_gradient(healthy, "lm_head.weight").norm()
    )
    assert measurement.floor == pytest.approx(floor, rel=1e-5)
    assert measurement.threshold == pytest.approx(16.0 * floor, rel=1e-5)
    assert measurement.limit == pytest.approx(17.0 * floor, rel=1e-5)
    assert healthy.capture is not None
    found = {
        name: compare_records(record, merged_of(healthy).tensors(1, "gradient")[name]).relative
        for name, record in healthy.capture.tensors(1, "gradient").items()
    }
    assert 0.0 < measurement.value < measurement.threshold
    assert measurement.value == pytest.approx(found["lm_head.weight"], rel=1e-6)
    assert verdict.sentence.endswith(f"within {max(found.values()):.2g}")


@pytest.mark.parametrize("name", [NORM, QUERY, "model.embed_tokens.weight"])
def test_a_merged_gradient_holds_up_to_twice_the_multiple(healthy: Material, edit: Editor, name: str) -> None:
    def judged(ratio: float) -> Verdict:
        gradient = beside(first_reference(healthy), split_gradient(healthy, name), name, ratio)
        return judge(healthy, edit(merged_of(healthy)).put("gradient", name, gradient))

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(
        f"2 micro-batches and 1 of the same rows give different gradients: only {name} differs"
    )
    assert (verdict.first_wrong, verdict.pattern) == ("gradient accumulation", Pattern.OBJECTIVE_SCALE)
    assert [m.name for m in verdict.measurements if not m.holds] == [name]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_pooled_scale_is_held_to_twice_the_multiple(healthy: Material, edit: Editor, sign: float) -> None:
    threshold = step_accumulation.judge(healthy).measurements[0].threshold
    floor = step_accumulation.judge(healthy).measurements[0].floor
    assert floor is not None
    assert threshold == pytest.approx(16.0 * (floor + 2.0**-24), rel=1e-9)

    def judged(ratio: float) -> Verdict:
        editing = edit(merged_of(healthy))
        for name in editing.names("gradient"):
            editing.put("gradient", name, split_gradient(healthy, name).double() / (1.0 + sign * ratio * threshold))
        return judge(healthy, editing)

    assert judged(0.99).status is Status.PASS
    verdict = judged(1.01)
    assert "the pooled scale of all gradients is" in verdict.sentence
    assert verdict.measurements[0].value == pytest.approx(1.01 * threshold, rel=1e-3)


def test_undivided_gradients_are_named_a_multiple_of_the_merged_batchs(healthy: Material, edit: Editor) -> None:
    editing = edit(merged_of(healthy))
    for name in editing.names("gradient"):
        editing.change("gradient", name, lambda gradient: 0.5 * gradient)
    verdict = judge(healthy, editing)
    assert "every gradient is 2× the merged batch's, cosine 1.000" in verdict.sentence


def test_a_gradient_in_one_run_only_is_named(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit(merged_of(healthy)).drop("gradient", NORM))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.endswith(f"give gradients for different parameters, first {NORM}")
    assert verdict.evidence["only_in_one"] == [NORM]
    ours = step_accumulation.judge(swap(healthy, edit(healthy.capture).drop("gradient", NORM).save()))
    assert ours.evidence["only_in_one"] == [NORM]


def test_other_rows_leave_it_open(healthy: Material, edit: Editor) -> None:
    def change(ids: torch.Tensor) -> torch.Tensor:
        changed = ids.clone()
        changed[0, 3] += 1
        return changed

    verdict = judge(healthy, edit(merged_of(healthy)).change("batch", "input_ids", change, micro_batch=0))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the two runs trained on different rows")


def test_padding_is_no_part_of_a_row(healthy: Material, edit: Editor) -> None:
    def change(ids: torch.Tensor) -> torch.Tensor:
        changed = ids.clone()
        mask = merged_of(healthy).micro_batch_tensors(1, "batch", 0)["attention_mask"].read("full")
        assert mask is not None
        return torch.where(mask.bool(), changed, 7)

    editing = edit(merged_of(healthy)).change("batch", "input_ids", change, micro_batch=0)
    assert judge(healthy, editing).status is Status.PASS


def test_packed_rows_are_cut_where_positions_restart(packed: Material) -> None:
    assert packed.capture is not None
    rows = step_accumulation._rows(packed.capture, 1)
    expected = Counter(
        tuple(m.input_ids[d.row, d.start : d.stop].tolist()) for m in packed.batches[1] for d in m.documents
    )
    assert rows == expected
    assert rows.total() == 7


def test_rows_without_mask_or_positions_are_taken_whole(packed: Material, edit: Editor) -> None:
    editing = edit(packed.capture)
    for index in (0, 1):
        editing.drop("batch", "position_ids", micro_batch=index)
    rows = step_accumulation._rows(editing.save(), 1)
    assert rows == Counter(tuple(row.tolist()) for m in packed.batches[1] for row in m.input_ids)


def test_a_missing_run_step_gradient_or_reference_leaves_it_open(healthy: Material, edit: Editor) -> None:
    assert step_accumulation.judge(swap_merged(healthy, None)).sentence == "the run on merged rows left no capture"
    assert step_accumulation.judge(replace(healthy, others={})).sentence == "the run on merged rows left no capture"
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_accumulation.judge(crashed).sentence == "the run left no capture to judge; see run.completes"
    bare = replace(healthy, references={}, no_reference={1: "dropout is on"})
    assert step_accumulation.judge(bare).sentence == "dropout is on"
    stepless = judge(healthy, edit(merged_of(healthy)).drop_step(1))
    assert stepless.sentence == "the run on merged rows did not record step 1"
    both = edit(healthy.capture), edit(merged_of(healthy))
    for editing in both:
        for name in editing.names("gradient"):
            editing.drop("gradient", name)
    empty = swap_merged(swap(healthy, both[0].save()), both[1].save())
    verdict = step_accumulation.judge(empty)
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, "the two runs have no gradient in common")


def test_the_multiple_is_that_of_the_runs_precision(healthy: Material, edit: Editor) -> None:
    gradient = beside(first_reference(healthy), split_gradient(healthy, NORM), NORM, 0.6)
    material = swap_merged(healthy, edit(merged_of(healthy)).put("gradient", NORM, gradient).save())
    assert step_accumulation.judge(material).status is Status.PASS
    in_bf16 = replace(material, spec=replace(material.spec, precision="bf16"))
    assert step_accumulation.judge(in_bf16).status is Status.FAIL


def test_records_are_compared_in_full_or_else_by_sketch(healthy: Material, edit: Editor) -> None:
    half = edit(merged_of(healthy)).put("gradient", QUERY, 0.5 * split_gradient(healthy, QUERY).double()).save()
    assert healthy.capture is not None
    ours, theirs = healthy.capture.tensors(1, "gradient")[QUERY], half.tensors(1, "gradient")[QUERY]
    full = compare_records(ours, theirs)
    assert full.error == pytest.approx(0.5 * ours.norm, rel=1e-9)
    sketched = edit(half).keep_sketches().save().tensors(1, "gradient")[QUERY]
    estimate = compare_records(ours, sketched)
    assert estimate.error == pytest.approx(0.5 * ours.norm, rel=0.05)
    assert (estimate.norm, estimate.other_norm) == (theirs.norm, ours.norm)
    assert estimate.scale == pytest.approx(2.0, rel=1e-9)
    moment = healthy.capture.tensors(1, "optimizer_state", field="exp_avg")[QUERY]
    bare = type(moment)(QUERY, "gradient", None, None, moment.dtype, (64, 64), moment.stats, {})
    with pytest.raises(ValueError, match="sketch in neither or only one"):
        compare_records(bare, theirs)
    with pytest.raises(ValueError, match="sketch in neither or only one"):
        compare_records(theirs, bare)


def test_one_row_a_step_cannot_be_split(healthy: Material) -> None:
    applies = step_accumulation.CHECK.applies
    assert applies(replace(healthy.spec, batch=1, accumulation=1)) == "one row a step cannot be split"
    assert applies(replace(healthy.spec, batch=1, accumulation=2)) is None
    assert applies(replace(healthy.spec, batch=2, accumulation=1)) is None


def test_gradients_that_are_zero_in_both_runs_are_measured_as_they_are(healthy: Material, edit: Editor) -> None:
    nothing = torch.zeros(64)
    material = swap(healthy, edit(healthy.capture).put("gradient", NORM, nothing).save())
    verdict = judge(material, edit(merged_of(healthy)).put("gradient", NORM, nothing))
    assert verdict.status is Status.PASS
    measurement = next(m for m in verdict.measurements if m.name == NORM)
    floor = first_reference(healthy).floor(NORM).total
    assert measurement.value == 0.0
    assert [measurement.threshold, measurement.floor] == pytest.approx([16.0 * floor, floor])
    tiny = judge(material, edit(merged_of(healthy)).put("gradient", NORM, nothing + 1e-3))
    worst = next(m for m in tiny.measurements if m.name == NORM)
    assert worst.value == pytest.approx(1.0)  # relative to the merged batch's


def test_a_batch_without_tokens_has_no_rows_and_a_mask_of_another_shape_says_nothing(
    packed: Material, edit: Editor
) -> None:
    assert packed.capture is not None
    rows = step_accumulation._rows(packed.capture, 1)
    wide = edit(packed.capture).rename("batch", "labels", "attention_mask", micro_batch=0)
    wide.put("batch", "attention_mask", torch.zeros(1, 1, 202, 202, dtype=torch.int64), micro_batch=0)
    assert step_accumulation._rows(wide.save(), 1) == rows
    less = edit(packed.capture).drop("batch", "input_ids", micro_batch=0).save()
    assert step_accumulation._rows(less, 1).total() == len(packed.batches[1][1].documents)
