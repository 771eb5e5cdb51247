"""step.denominator: its three sentences, and both sides of its threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_denominator
from checks.material import Material
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap

COUNTS = (234, 101)
FLOOR = 2.0**-24 * (2.0 + math.log2(335))


def sums_of(material: Material) -> tuple[float, ...]:
    """Σ of the recorded token losses of each micro-batch."""
    batches = material.batches[1]
    found = []
    for micro in batches:
        assert micro.token_losses_seen is not None
        found.append(float(micro.token_losses_seen[micro.counted].sum()))
    return tuple(found)


def divide(material: Material, editing: Edit, divisors: Sequence[float], *, dtype: str = "torch.float32") -> Edit:
    """Let each micro-batch's scalar be its token losses over its divisor."""
    for record, total, divisor in zip(editing.step()["micro_batches"], sums_of(material), divisors, strict=True):
        record |= {"backward": total / divisor, "backward_dtype": dtype}
    return editing


def judge(material: Material, editing: Edit) -> Verdict:
    return step_denominator.judge(swap(material, editing.save()))


def test_a_healthy_step_passes_with_its_count(healthy: Material) -> None:
    verdict = step_denominator.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "divided by 335, and 335 tokens count in the step"
    assert verdict.evidence["counted"] == list(COUNTS)
    assert verdict.evidence["total"] == 335
    assert verdict.evidence["num_items_in_batch"] == [335.0, 335.0]
    assert [m.name for m in verdict.measurements] == [
        "denominator of the step",
        "denominator of micro-batch 0",
        "denominator of micro-batch 1",
    ]
    assert verdict.measurements[0].floor == pytest.approx(FLOOR, rel=1e-12)
    assert verdict.measurements[0].threshold == pytest.approx(8.0 * FLOOR, rel=1e-12)
    assert verdict.detection_limits == {"denominator": pytest.approx(9.0 * FLOOR, rel=1e-12)}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_steps_denominator_holds_up_to_its_threshold(healthy: Material, edit: Editor, sign: float) -> None:
    def judged(ratio: float) -> Verdict:
        wrong = 335.0 * (1.0 + sign * ratio * 8.0 * FLOOR)
        return judge(healthy, divide(healthy, edit(healthy.capture), (wrong, wrong)))

    assert judged(0.999).status is Status.PASS
    assert judged(1.001).status is Status.FAIL


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_micro_batchs_denominator_is_held_to_the_same_threshold(healthy: Material, edit: Editor, sign: float) -> None:
    # The other micro-batch makes up for it, so that only this one is wrong.
    def judged(ratio: float) -> Verdict:
        first, second = sums_of(healthy)
        part = second / (335.0 * (1.0 + sign * ratio * 8.0 * FLOOR))
        rest = (first + second) / 335.0 - part
        editing = edit(healthy.capture)
        for record, scalar in zip(editing.step()["micro_batches"], (rest, part), strict=True):
            record["backward"] = scalar
        return judge(healthy, editing)

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.FAIL
    assert [m.holds for m in verdict.measurements] == [True, True, False]


def test_a_wrong_count_says_how_far_loss_and_gradients_are_off(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, divide(healthy, edit(healthy.capture), (670.0, 670.0)))
    assert verdict.sentence == (
        "the loss is divided by 670, and 335 tokens count in the step: "
        "loss and every gradient are 0.5000× what they should be"
    )
    assert (verdict.first_wrong, verdict.pattern) == ("loss denominator", Pattern.OBJECTIVE_SCALE)
    assert verdict.evidence["in_force"] == pytest.approx(670.0, rel=1e-12)
    assert verdict.evidence["in_force_by_micro_batch"] == pytest.approx([670.0, 670.0], rel=1e-12)
    assert verdict.measurements[0].value == pytest.approx(1.0)


def test_a_mean_of_micro_batch_means_is_named(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, divide(healthy, edit(healthy.capture), (2 * 234.0, 2 * 101.0)))
    assert verdict.sentence.startswith(
        "each micro-batch is divided by 2 × its own tokens (234, 101), not by the step's 335: "
        "a mean of micro-batch means"
    )
    # One micro-batch that is not so divided makes it something else.
    other = judge(healthy, divide(healthy, edit(healthy.capture), (2 * 234.0, 101.0)))
    assert other.sentence.startswith("the loss is divided by ")


def test_a_loss_that_is_not_divided_over_the_accumulation_is_named(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, divide(healthy, edit(healthy.capture), (167.5, 167.5)))
    assert verdict.sentence == (
        "the loss is not divided over the accumulation: 2 × what it should be (335 tokens count)"
    )
    twice = judge(healthy, divide(healthy, edit(healthy.capture), (150.0, 150.0)))
    assert twice.sentence.startswith("the loss is divided by 150,")


@pytest.mark.parametrize(
    ("dtype", "epsilon"),
    [
        ("torch.bfloat16", 2.0**-9),
        ("torch.float16", 2.0**-11),
        ("torch.float64", 2.0**-53),
        ("torch.float8_e4m3fn", 2.0**-9),
    ],
)
def test_the_threshold_follows_the_dtype_of_the_scalar(
    healthy: Material, edit: Editor, dtype: str, epsilon: float
) -> None:
    threshold = 8.0 * epsilon * (2.0 + math.log2(335))

    def judged(ratio: float) -> Verdict:
        wrong = 335.0 * (1.0 + ratio * threshold)
        return judge(healthy, divide(healthy, edit(healthy.capture), (wrong, wrong), dtype=dtype))

    assert judged(0.5).status is Status.PASS
    assert judged(0.5).measurements[0].threshold == pytest.approx(threshold)
    assert judged(1.5).status is Status.FAIL


def test_the_coarsest_dtype_of_the_step_decides(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["micro_batches"][1]["backward_dtype"] = "torch.bfloat16"
    editing.step()["micro_batches"][0]["backward_dtype"] = None
    expected = 8.0 * 2.0**-9 * (2.0 + math.log2(335))
    assert judge(healthy, editing).measurements[0].threshold == pytest.approx(expected)


def test_a_scalar_or_a_loss_that_was_not_recorded_leaves_it_open(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["micro_batches"][1]["backward"] = None
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "micro-batch 1: the per-token losses or the scalar were not recorded"
    lossless = judge(healthy, edit(healthy.capture).drop("token_loss", "token_loss", micro_batch=0))
    assert lossless.sentence == "micro-batch 0: the per-token losses or the scalar were not recorded"


def test_a_loss_of_zero_or_no_counted_token_tells_no_denominator(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for record in editing.step()["micro_batches"]:
        record["backward"] = 0.0
    assert judge(healthy, editing).sentence == "the step's loss is 0.0 over 335 tokens: no denominator can be told"
    uncounted = edit(healthy.capture)
    for index in (0, 1):
        uncounted.change("target", "target", lambda target: torch.full_like(target, -100), micro_batch=index)
    verdict = judge(healthy, uncounted)
    assert verdict.status is Status.INCONCLUSIVE
    assert "over 0 tokens" in verdict.sentence


def test_a_micro_batch_without_counted_tokens_has_no_denominator_of_its_own(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.change("target", "target", lambda target: torch.full_like(target, -100), micro_batch=1)
    first, second = editing.step()["micro_batches"]
    first["backward"], second["backward"] = sums_of(healthy)[0] / 234.0, 0.0
    verdict = judge(healthy, editing)
    assert verdict.status is Status.PASS
    assert [m.name for m in verdict.measurements] == ["denominator of the step", "denominator of micro-batch 0"]
    second["backward"] = None
    first["backward"] = 0.0


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_scalar_that_is_not_finite_never_passes(healthy: Material, edit: Editor, value: str) -> None:
    editing = edit(healthy.capture)
    editing.step()["micro_batches"][1]["backward"] = value
    assert judge(healthy, editing).status is Status.FAIL


def test_an_auxiliary_loss_is_taken_off_before_dividing(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    first, second = editing.step()["micro_batches"]
    first["backward"] += 0.25
    second["backward"] += 0.25
    material = swap(healthy, editing.save())
    assert step_denominator.judge(material).status is Status.FAIL
    with_term = replace(material, references={1: replace(first_reference(material), auxiliary=0.5)})
    verdict = step_denominator.judge(with_term)
    assert verdict.status is Status.PASS
    for auxiliary in (0.4, 0.6):
        other = replace(material, references={1: replace(first_reference(material), auxiliary=auxiliary)})
        wrong = step_denominator.judge(other)
        assert wrong.status is Status.FAIL
        assert wrong.sentence.startswith("the loss is divided by ")
    # A micro-batch's own share of the term is not known.
    assert [m.name for m in verdict.measurements] == ["denominator of the step"]


def test_an_auxiliary_loss_without_a_reference_leaves_it_open(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["scalars"][""]["config"]["output_router_logits"] = True
    material = swap(healthy, editing.save())
    assert step_denominator.judge(material).status is Status.PASS
    bare = replace(material, references={}, no_reference={1: "dropout is on"})
    verdict = step_denominator.judge(bare)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "an auxiliary loss is added, and dropout is on"
    assert step_denominator.judge(replace(healthy, references={})).status is Status.PASS


def test_without_a_capture_there_is_no_verdict(healthy: Material) -> None:
    assert step_denominator.judge(replace(healthy, batches={})).status is Status.INCONCLUSIVE
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_denominator.judge(crashed).sentence == "the run left no capture to judge; see run.completes"
