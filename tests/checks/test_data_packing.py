"""data.packing: leaks, positions and targets across boundaries, on a packed run of TRL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checks.diagnosis.first_divergence import Divergence, ModuleError
from checks.lifecycle import data_packing
from checks.material import Material
from checks.references.batch import MicroBatch
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap

NAMES = [
    "first documents of a row",
    "later documents of a row",
    "targets across a boundary",
    "documents whose positions do not restart",
]


def judge(material: Material, editing: Edit) -> Verdict:
    return data_packing.judge(swap(material, editing.save()))


def move(material: Material, editing: Edit, offsets: dict[int, float], *, micro_batch: int = 0) -> Edit:
    """Let a document's third token (document → thresholds) be off, and every other loss exact."""
    reference = first_reference(material)
    losses = reference.token_losses[micro_batch].clone()
    for document, ratio in offsets.items():
        losses[0, reference.micro_batches[micro_batch].documents[document].start + 2] += (
            ratio * 8.0 * reference.token_floor
        )
    return editing.put("token_loss", "token_loss", losses[:, :-1], micro_batch=micro_batch)


def shift_positions(editing: Edit, start: int, *, by: int) -> Edit:
    def shift(positions: torch.Tensor) -> torch.Tensor:
        changed = positions.clone()
        changed[0, start:] += by
        return changed

    return editing.change("batch", "position_ids", shift, micro_batch=1)


def test_a_healthy_packed_run_passes_with_every_document(packed: Material) -> None:
    reference = first_reference(packed)
    verdict = data_packing.judge(packed)
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith("7 documents in 2 rows are trained as if each stood alone, within ")
    assert [m.name for m in verdict.measurements] == NAMES
    for measurement in verdict.measurements[:2]:
        assert 0.0 < measurement.value < measurement.threshold == 8.0 * reference.token_floor
        assert (measurement.floor, measurement.limit) == (reference.token_floor, 9.0 * reference.token_floor)
    assert [m.threshold for m in verdict.measurements[2:]] == [0.0, 0.0]
    assert verdict.detection_limits == {"token of a document": 9.0 * reference.token_floor / reference.loss}
    assert [row[:4] for row in verdict.evidence["documents"]] == [
        [index, d.row, d.start, d.stop] for index, m in enumerate(reference.micro_batches) for d in m.documents
    ]


@pytest.mark.parametrize(("document", "place"), [(0, 0), (1, 1), (2, 1)])
def test_documents_hold_up_to_the_threshold_first_and_later_ones_apart(
    packed: Material, edit: Editor, document: int, place: int
) -> None:
    assert judge(packed, move(packed, edit(packed.capture), {document: 0.999})).status is Status.PASS
    verdict = judge(packed, move(packed, edit(packed.capture), {document: 1.001}))
    assert verdict.status is Status.FAIL
    assert [m.holds for m in verdict.measurements] == [place != 0, place != 1, True, True]


def test_a_leak_reaches_later_documents_only(packed: Material, edit: Editor) -> None:
    verdict = judge(packed, move(packed, edit(packed.capture), {1: 3.0, 2: 2.0}))
    assert verdict.sentence.startswith(
        "documents see each other: token losses differ only from the second packed document on, in 2 of 7 documents, "
        "by up to "
    )
    assert verdict.sentence.endswith("; first at micro-batch 0, row 0, token 74")
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.SEQUENCE_LENGTH, "attention mask")


def test_a_fault_that_reaches_first_documents_too_is_not_the_packings(packed: Material, edit: Editor) -> None:
    verdict = judge(packed, move(packed, edit(packed.capture), {0: 3.0, 2: 2.0}))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("2 of 7 documents differ, first documents of a row too (by up to ")
    assert verdict.first_wrong == "model"


def test_the_module_of_a_second_pass_is_where_it_starts(packed: Material, edit: Editor) -> None:
    module = ModuleError("model.layers.0.self_attn", "Qwen3Attention", 1.0, 0.1, 0.8)
    traced = replace(packed, divergence=Divergence((module,), (), True))
    verdict = judge(traced, move(packed, edit(packed.capture), {1: 3.0}))
    assert verdict.first_wrong == "model.layers.0.self_attn"
    clean = replace(packed, divergence=Divergence((), (), True))
    assert judge(clean, move(packed, edit(packed.capture), {1: 3.0})).first_wrong == "attention mask"


def test_positions_that_do_not_restart_are_named(packed: Material, edit: Editor) -> None:
    second = packed.batches[1][1].documents[1]
    verdict = judge(packed, shift_positions(edit(packed.capture), second.start, by=second.start))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        "positions do not restart at 3 documents (micro-batch 1, row 0, token 67: positions start at 67)"
    )
    assert (verdict.first_wrong, verdict.measurements[3].value) == ("position_ids", 3.0)
    assert verdict.evidence["wrong_positions"][0].startswith("micro-batch 1, row 0, token 67")


def test_one_position_off_within_a_document_is_seen(packed: Material, edit: Editor) -> None:
    last = packed.batches[1][1].documents[-1]
    verdict = judge(packed, shift_positions(edit(packed.capture), last.stop - 1, by=1))
    assert verdict.measurements[3].value == 1.0
    assert verdict.status is Status.FAIL


def test_a_batch_without_position_ids_leaves_them_to_the_model(packed: Material, edit: Editor) -> None:
    editing = edit(packed.capture)
    for index in (0, 1):
        editing.drop("batch", "position_ids", micro_batch=index)
    assert judge(packed, editing).status is Status.PASS
    other = edit(packed.capture).change("batch", "position_ids", lambda p: p[:, :-1] + 5, micro_batch=0)
    assert judge(packed, other).status is Status.PASS


def test_a_target_across_a_boundary_is_counted(packed: Material, edit: Editor) -> None:
    first = packed.batches[1][0].documents[0]

    def cross(target: torch.Tensor) -> torch.Tensor:
        changed = target.clone()
        changed[0, first.stop - 1] = 5
        return changed

    verdict = judge(packed, edit(packed.capture).change("target", "target", cross, micro_batch=0))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == "1 targets lie across a document boundary"
    assert (verdict.first_wrong, verdict.measurements[2].value) == ("labels", 1.0)


def test_the_multiple_is_that_of_the_runs_precision(packed: Material, edit: Editor) -> None:
    material = swap(packed, move(packed, edit(packed.capture), {1: 0.6}).save())
    assert data_packing.judge(material).status is Status.PASS
    in_bf16 = replace(material, spec=replace(material.spec, precision="bf16"))
    assert data_packing.judge(in_bf16).status is Status.FAIL


@pytest.mark.parametrize("micro_batch", [0, 1])
def test_a_loss_that_is_not_a_number_never_passes(packed: Material, edit: Editor, micro_batch: int) -> None:
    editing = move(packed, edit(packed.capture), {1: float("nan")}, micro_batch=micro_batch)
    verdict = judge(packed, editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith("documents see each other")


def batches(material: Material, **changes: object) -> dict[int, tuple[MicroBatch, ...]]:
    return {1: tuple(replace(micro, **changes) for micro in material.batches[1])}  # type: ignore[arg-type]


def test_boundaries_that_the_data_do_not_tell_leave_it_open(packed: Material) -> None:
    unknown = replace(packed, batches=batches(packed, boundaries="mask", unbounded="no way of joining documents"))
    verdict = data_packing.judge(unknown)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "where documents begin cannot be told from the data: no way of joining documents"


def test_rows_of_one_document_each_leave_it_open(packed: Material, healthy: Material) -> None:
    verdict = data_packing.judge(healthy)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("no row of the captured step holds two documents")
    # One row with two documents is enough.
    first, second = packed.batches[1]
    one = (replace(first, documents=first.documents[:1]), replace(second, documents=second.documents[:2]))
    assert data_packing.judge(replace(packed, batches={1: one})).status is Status.PASS
    none = tuple(replace(micro, documents=micro.documents[:1]) for micro in one)
    assert data_packing.judge(replace(packed, batches={1: none})).status is Status.INCONCLUSIVE


def test_what_was_not_recorded_or_referenced_leaves_it_open(packed: Material) -> None:
    bare = replace(packed, references={}, no_reference={1: "dropout is on"})
    assert data_packing.judge(bare).sentence == "dropout is on"
    lossless = replace(packed, batches=batches(packed, token_losses_seen=None))
    assert data_packing.judge(lossless).sentence == "the per-token losses were not recorded"
    first, second = packed.batches[1]
    half = replace(packed, batches={1: (first, replace(second, token_losses_seen=None))})
    assert data_packing.judge(half).sentence == "the per-token losses were not recorded"
    assert data_packing.judge(replace(packed, batches={})).status is Status.INCONCLUSIVE
    crashed = replace(packed, run=replace(packed.run, capture=None))
    assert data_packing.judge(crashed).sentence == "the run left no capture to judge; see run.completes"


def test_a_run_that_does_not_pack_is_skipped(packed: Material, healthy: Material) -> None:
    assert data_packing.CHECK.applies(healthy.spec) == "the run does not pack (packing=false)"
    assert data_packing.CHECK.applies(packed.spec) is None
