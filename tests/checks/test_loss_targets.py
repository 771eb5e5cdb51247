"""step.loss: targets that are not the next token, and positions that the labels do not ask for."""

from __future__ import annotations

import pytest
import torch

from checks.architecture import step_loss
from checks.material import Material
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, swap


def judge(material: Material, editing: Edit) -> Verdict:
    return step_loss.judge(swap(material, editing.save()))


def aim(material: Material, editing: Edit, offset: int) -> Edit:
    """Let the loss at every counted position t be taken against token t + offset."""
    for index, micro in enumerate(material.batches[1]):
        shifted = torch.where(micro.counted, torch.roll(micro.input_ids, -offset, dims=1), -100)
        recorded = editing.tensor("target", "target", micro_batch=index)
        editing.put("target", "target", shifted[:, : recorded.shape[1]], micro_batch=index)
    return editing


@pytest.mark.parametrize(
    ("offset", "sentence"),
    [
        (2, "labels are shifted twice: the loss at position t is taken against token t + 2"),
        (0, "labels are not shifted: the loss at position t is taken against token t itself"),
        (3, "labels are shifted three times: the loss at position t is taken against token t + 3"),
        (-1, "labels are shifted the wrong way: the loss at position t is taken against token t − 1"),
    ],
)
def test_the_distance_of_misplaced_targets_is_named(
    healthy: Material, edit: Editor, offset: int, sentence: str
) -> None:
    verdict = judge(healthy, aim(healthy, edit(healthy.capture), offset))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(f"{sentence} (")
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.LOSS_MASK, "labels")
    assert verdict.evidence["counted"] == 335
    assert verdict.measurements[0].value == verdict.evidence["wrong"] > 300
    assert (verdict.measurements[0].threshold, verdict.measurements[0].holds) == (0.0, False)


def test_one_wrong_target_fails_with_its_count(healthy: Material, edit: Editor) -> None:
    def replace_one(target: torch.Tensor) -> torch.Tensor:
        changed = target.clone()
        changed[0, 5] = (changed[0, 5] + 1) % 512
        return changed

    verdict = judge(healthy, edit(healthy.capture).change("target", "target", replace_one, micro_batch=1))
    assert verdict.sentence == "1 of 335 counted targets are not the next token"
    assert verdict.measurements[0].value == 1.0


def test_a_distance_needs_nine_tenths_of_the_targets(healthy: Material, edit: Editor) -> None:
    def mixed(wrong: int) -> str:
        editing = aim(healthy, edit(healthy.capture), 2)

        def spoil(target: torch.Tensor) -> torch.Tensor:
            changed = target.clone()
            places = (changed[0] != -100).nonzero().flatten()[:wrong]
            changed[0, places] = 511
            return changed

        return judge(healthy, editing.change("target", "target", spoil, micro_batch=0)).sentence

    matching = sum(int((m.counted & (torch.roll(m.input_ids, -2, dims=1) == 511)).sum()) for m in healthy.batches[1])
    assert matching == 0
    assert mixed(33).startswith("labels are shifted twice")  # 302 of 335 are left: more than 301.5
    assert mixed(34).endswith("of 335 counted targets are not the next token")


def test_targets_across_a_boundary_are_named(packed: Material, edit: Editor) -> None:
    first = packed.batches[1][0].documents[0]

    def cross(target: torch.Tensor) -> torch.Tensor:
        changed = target.clone()
        assert int(changed[0, first.stop - 1]) == -100
        changed[0, first.stop - 1] = packed.batches[1][0].input_ids[0, first.stop]
        return changed

    editing = edit(packed.capture).change("target", "target", cross, micro_batch=0)
    verdict = judge(packed, editing)
    assert verdict.sentence.startswith("1 counted targets lie across a document boundary: the last token of a document")
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.LOSS_MASK, "labels")
    spoilt = editing_with_one_more(packed, edit, cross)
    assert judge(packed, spoilt).sentence == "2 of 452 counted targets are not the next token"


def editing_with_one_more(material: Material, edit: Editor, cross: object) -> Edit:
    def spoil(target: torch.Tensor) -> torch.Tensor:
        changed = cross(target)  # type: ignore[operator]
        changed[0, 3] = (changed[0, 3] + 1) % 512
        return changed  # type: ignore[no-any-return]

    return edit(material.capture).change("target", "target", spoil, micro_batch=0)


def test_a_label_that_the_loss_leaves_out_or_adds_is_a_mask_error(healthy: Material, edit: Editor) -> None:
    def leave_out(target: torch.Tensor) -> torch.Tensor:
        changed = target.clone()
        changed[1, 4] = changed[1, 9] = -100
        return changed

    less = judge(healthy, edit(healthy.capture).change("target", "target", leave_out, micro_batch=0))
    assert less.status is Status.FAIL
    assert less.sentence == (
        "the loss counts 333 tokens and the batch's labels ask for 335: "
        "2 positions differ, first micro-batch 0, row 1, position 4"
    )
    assert (less.first_wrong, less.pattern, less.measurements[0].value) == ("labels", Pattern.LOSS_MASK, 2.0)
    assert (less.evidence["counted"], less.evidence["asked"], less.evidence["wrong"]) == (333, 335, 2)
    row = less.evidence["tokens"][0]
    differs = [i for i, pair in enumerate(zip(row["asked"][1], row["counted"][1], strict=True)) if pair[0] != pair[1]]
    assert (differs, row["reference"]) == ([4, 9], None)
    assert (less.measurements[0].threshold, less.measurements[0].holds) == (0.0, False)
    masked = edit(healthy.capture)
    for index in (0, 1):
        masked.change(
            "batch", "labels", lambda labels: torch.where(labels == labels[0, 3], -100, labels), micro_batch=index
        )
    more = judge(healthy, masked)
    assert more.sentence.startswith("the loss counts 335 tokens and the batch's labels ask for ")
    assert more.evidence["wrong"] == 335 - more.evidence["asked"] > 2


def test_labels_that_were_not_recorded_ask_nothing(healthy: Material, edit: Editor) -> None:
    def leave_out(target: torch.Tensor) -> torch.Tensor:
        changed = target.clone()
        changed[1, 4] = -100
        return changed

    editing = edit(healthy.capture).change("target", "target", leave_out, micro_batch=0)
    assert judge(healthy, editing.drop("batch", "labels", micro_batch=1)).status is Status.PASS
