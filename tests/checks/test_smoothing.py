"""Labels that are smoothed: read off the loss function, or off the scalars where the loss was computed out of sight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.architecture import step_loss
from checks.diagnosis.smoothing import fit_smoothing
from checks.material import Material
from checks.references.batch import UnreadableBatch, read_step
from checks.references.kept import IGNORED
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, corpus_of, swap


def hide_loss(material: Material, edit: Editor, *, epsilon: float) -> Edit:
    """The run as if its trainer had smoothed labels by `epsilon`, and the recorder had seen no loss function."""
    editing = edit(material.capture)
    for step in (1, 3):
        losses = material.references[step].token_losses
        total = sum(int(micro.counted.sum()) for micro in material.batches[step])
        for record, micro, loss in zip(
            editing.step(step)["micro_batches"], material.batches[step], losses, strict=True
        ):
            index = record["index"]
            means = torch.full_like(loss[:, :-1], 5.0) + 0.25 * torch.arange(loss.shape[1] - 1)
            editing.put("token_loss", "token_loss", loss[:, :-1], step=step, micro_batch=index)
            hidden = editing.entry("token_loss", "token_loss", step=step, micro_batch=index)
            hidden.update(kind="next_token", name="next_token", field="loss")
            editing.put("target", "target", means, step=step, micro_batch=index)
            mean = editing.entry("target", "target", step=step, micro_batch=index)
            mean.update(kind="next_token", name="next_token", field="mean")
            counted = micro.counted[:, :-1]
            smoothed = (1.0 - epsilon) * loss[:, :-1][counted].sum() + epsilon * means[counted].sum()
            record.update(cross_entropy=[], loss_source=None, backward=float(smoothed) / total)
    return editing


def judge(material: Material, editing: Edit) -> Verdict:
    return step_loss.judge(swap(material, editing.save()))


@pytest.mark.parametrize("epsilon", [0.1, 0.02])
def test_smoothing_out_of_sight_is_named_by_its_epsilon(healthy: Material, edit: Editor, epsilon: float) -> None:
    verdict = judge(healthy, hide_loss(healthy, edit, epsilon=epsilon))
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (
        *(Status.FAIL, Pattern.OBJECTIVE_SCALE),
        "label smoothing",
    )
    assert f"labels are smoothed by {epsilon}, which nobody asked for" in verdict.sentence
    assert f"{1.0 - epsilon:.4g}× their mean" in verdict.sentence


def test_a_loss_out_of_sight_that_is_the_objective_passes(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, hide_loss(healthy, edit, epsilon=0.0))
    assert verdict.status is Status.PASS, verdict.sentence


def test_another_scale_is_not_read_as_smoothing(healthy: Material, edit: Editor) -> None:
    editing = hide_loss(healthy, edit, epsilon=0.0)
    for step in (1, 3):
        for record in editing.step(step)["micro_batches"]:
            record["backward"] *= 1.01
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, "loss denominator")


def test_a_loss_function_that_says_its_smoothing_is_believed(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for record in editing.step()["micro_batches"]:
        record["cross_entropy"][0]["label_smoothing"] = 0.05
        record["backward"] *= 1.01
    verdict = judge(healthy, editing)
    assert verdict.first_wrong == "label smoothing"
    assert "labels are smoothed by 0.05" in verdict.sentence


def test_targets_of_a_loss_out_of_sight_are_every_token_of_the_data(healthy: Material, edit: Editor) -> None:
    capture = hide_loss(healthy, edit, epsilon=0.0).save()
    corpus = corpus_of(healthy.spec)
    assert corpus is not None
    assert corpus.all_learned
    for hidden, seen in zip(read_step(capture, 1, corpus=corpus), healthy.batches[1], strict=True):
        assert hidden.counted.equal(seen.counted)
        assert hidden.targets.equal(seen.targets)
        assert hidden.targets_seen[~hidden.counted].eq(IGNORED).all()
        assert hidden.mean_losses_seen is not None
        assert seen.mean_losses_seen is None


@pytest.mark.parametrize(
    "corpus", [{"all_learned": False}, {"documents": ()}, None], ids=["answers", "no data", "none"]
)
def test_without_the_data_nothing_says_which_targets_counted(
    healthy: Material, edit: Editor, corpus: dict[str, Any] | None
) -> None:
    capture = hide_loss(healthy, edit, epsilon=0.0).save()
    known = corpus_of(healthy.spec)
    assert known is not None
    with pytest.raises(UnreadableBatch, match="does not say which targets its loss counted"):
        read_step(capture, 1, corpus=None if corpus is None else replace(known, **corpus))


def test_an_epsilon_must_explain_every_scalar() -> None:
    parts = [(1.9, 2.0, 1.0), (4.9, 5.0, 4.0)]
    assert fit_smoothing(parts, 1e-6) == 0.1
    assert fit_smoothing(parts[:1], 1e-6) is None
    assert fit_smoothing([*parts, (4.9, 5.0, 4.5)], 1e-6) is None
    assert fit_smoothing([*parts, (4.9, 5.0, 4.5)], 0.1) is not None
    assert fit_smoothing([(2.1, 2.0, 1.0), (5.1, 5.0, 4.0)], 1e-6) is None  # ε = −0.1
    assert fit_smoothing([(0.9, 2.0, 1.0), (3.9, 5.0, 4.0)], 1e-6) is None  # ε = 1.1
    assert fit_smoothing([(2.0, 2.0, 2.0), (5.0, 5.0, 5.0)], 1e-6) is None
