"""checkpoint.resume: each part of the step that a resume can get wrong, on edited captures of a real resumed run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from checks.captures.capture import Capture, open_capture
from checks.lifecycle import checkpoint_resume
from checks.material import Material
from checks.repeats.allowance import Allowance
from checks.repeats.rows import compare_rows
from checks.roles import Role
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, capture_of, first_reference

QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
FIRST = "step 3, the first after a save and a resume, is not the uninterrupted run's, first in its "
STAGES = ["batch", "learning rate", "optimizer state", "weights", "loss", "gradients", "update"]


def taken_up(material: Material) -> Capture:
    capture = material.capture_of(Role.RESUMED)
    assert capture is not None
    return capture


def put(material: Material, *, run: Edit | None = None, resumed: Edit | None = None) -> Material:
    if run is not None:
        material = replace(material, run=replace(material.run, capture=run.save()))
    if resumed is not None:
        outcome = replace(material.others[Role.RESUMED], capture=resumed.save())
        material = replace(material, others={Role.RESUMED: outcome})
    return material


def judge(material: Material, **edits: Edit) -> Verdict:
    return checkpoint_resume.judge(put(material, **edits))


def nudge(editing: Edit, kind: str, name: str, relative: float) -> Edit:
    """Let the sketch be off by so much of its norm, and let nothing else tell."""
    entry = editing.entry(kind, name)
    kept = {r: editing._read(entry, r) for r in entry["representations"] if r != "full"}
    entry["representations"] = dict.fromkeys(kept, "")
    sketch = kept["sketch"].clone()
    sketch[int(sketch.abs().argmax())] += relative * float(sketch.norm())
    editing._write(entry, {**kept, "sketch": sketch})
    return editing


def bump(tensor: torch.Tensor) -> torch.Tensor:
    """One element by one unit in the last place."""
    changed = tensor.clone()
    changed.view(-1)[3] = torch.nextafter(changed.view(-1)[3], torch.tensor(torch.inf))
    return changed


def test_a_healthy_resume_repeats_the_step_bit_by_bit(resumed: Material) -> None:
    verdict = checkpoint_resume.judge(resumed)
    assert verdict.status is Status.PASS
    assert verdict.sentence == (
        "step 3, the first after a save and a resume, is the uninterrupted run's within 0: 8 tensors of the batch, "
        "24 settings of the optimizer, 75 optimizer states, 25 weights, 4 losses, 25 gradients and "
        "100 tensors of the update"
    )
    assert [m.name for m in verdict.measurements] == STAGES
    assert all((m.value, m.holds) == (0.0, True) for m in verdict.measurements)
    assert [m.threshold for m in verdict.measurements] == [0.0, 0.0, 1e-13, 1e-13, 1e-13, 1e-13, 1e-13]
    assert verdict.detection_limits["weights"] == verdict.detection_limits["gradients"] == 2e-13
    assert (verdict.evidence["saved_after"], verdict.evidence["repeatable"]) == (2, True)
    assert verdict.evidence["rows"] is None


def test_rows_of_the_first_step_are_read_as_data_that_start_over(resumed: Material, edit: Editor) -> None:
    editing, run = edit(taken_up(resumed)), Edit(capture_of(resumed), edit(taken_up(resumed)).out / "unused")
    for index in (0, 1):
        for name in ("input_ids", "attention_mask", "labels"):
            editing.put("batch", name, run.tensor("batch", name, micro_batch=index), micro_batch=index)
    verdict = judge(resumed, resumed=editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"{FIRST}batch: its rows are those of step 1: the order of the data starts over"
    assert (verdict.pattern, verdict.first_wrong) == (Pattern.STATE_TRANSFER, "data order")
    rows = verdict.evidence["rows"]
    assert (rows["place"], rows["of_step_1"], rows["rows"], rows["same_rows"]) == (0, 4, 4, False)
    ids = run.tensor("batch", "input_ids", micro_batch=0)
    assert rows["got"] == ids[0, :12].tolist()


def test_the_same_rows_in_another_order_are_told_apart_from_other_rows(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed))
    for name in ("input_ids", "attention_mask", "labels"):
        editing.change("batch", name, lambda tensor: tensor.flip(0), micro_batch=1)
    verdict = judge(resumed, resumed=editing)
    assert verdict.sentence == f"{FIRST}batch: the rows are the same in another order, from row 2 on"
    other = edit(taken_up(resumed)).change("batch", "input_ids", lambda ids: ids + 1, micro_batch=1)
    verdict = judge(resumed, resumed=other)
    assert verdict.sentence == (f"{FIRST}batch: other rows came than in the uninterrupted run, first row 2 of 4")


def test_rows_are_compared_in_order_and_as_often_as_they_come() -> None:
    a, b, c = (1, 2), (3,), (4, 5)
    assert compare_rows((a, b), (a, b), (a,)) is None
    found = compare_rows((a, c), (a, b), (c,))
    assert found is not None
    assert (found.first, found.got, found.wanted, found.same_rows, found.earlier) == (1, c, b, False, 1)
    assert found.sentence == "other rows came than in the uninterrupted run, first row 1 of 2, 1 of them rows of step 1"
    short = compare_rows((a,), (a, b), ())
    assert short is not None
    assert (short.first, short.got, short.wanted) == (1, (), b)
    twice = compare_rows((a, a), (a, b), ())
    assert twice is not None
    assert not twice.same_rows


def test_labels_that_differ_on_the_same_rows_are_named(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed)).change("batch", "labels", lambda labels: labels.clamp(max=7), micro_batch=1)
    verdict = judge(resumed, resumed=editing)
    assert verdict.sentence == f"{FIRST}batch: the rows are the same, and labels of micro-batch 1 is another"
    assert verdict.first_wrong == "labels"
    lacking = edit(taken_up(resumed)).drop("batch", "attention_mask", micro_batch=0)
    assert judge(resumed, resumed=lacking).status is Status.FAIL


def test_a_learning_rate_of_the_first_step_is_a_schedule_that_starts_over(resumed: Material, edit: Editor) -> None:
    run = edit(capture_of(resumed))
    run.group(QUERY, step=3)["settings"]["lr"] = 2.5e-4
    verdict = judge(resumed, run=run)
    assert verdict.status is Status.FAIL
    assert verdict.sentence == (
        f"{FIRST}learning rate: the learning rate is 0.001, 0.00025 in the uninterrupted run: "
        "it is that of step 1, the schedule starts over"
    )
    assert verdict.first_wrong == "learning rate"
    assert verdict.measurements[1].value == 3.0
    other = edit(taken_up(resumed))
    other.group(QUERY)["settings"]["lr"] = 0.002
    assert judge(resumed, resumed=other).sentence == (
        f"{FIRST}learning rate: the learning rate is 0.002, 0.001 in the uninterrupted run"
    )


def test_another_setting_of_the_optimizer_is_named_with_its_group(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed))
    editing.group(NORM)["settings"]["weight_decay"] = 0.01
    verdict = judge(resumed, resumed=editing)
    assert verdict.sentence == (
        f"{FIRST}optimizer settings: weight_decay of group 1 is 0.01, 0 in the uninterrupted run"
    )
    assert verdict.first_wrong == "weight_decay of group 1"
    merged = edit(taken_up(resumed))
    del merged.step()["optimizer"]["groups"][1]
    verdict = judge(resumed, resumed=merged)
    assert "the optimizer is AdamW with 1 groups, AdamW with 2 groups in the uninterrupted run" in verdict.sentence
    assert verdict.first_wrong == "optimizer"


def test_a_rate_that_was_lost_with_the_moments_is_not_the_cause(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed)).drop("optimizer_state_before", QUERY, field="exp_avg")
    editing.group(QUERY)["settings"]["lr"] = 0.002
    verdict = judge(resumed, resumed=editing)
    assert verdict.sentence == (
        f"{FIRST}optimizer state: the optimizer holds no state for 1 of 25 parameters: it was not restored; "
        "after it also in learning rate"
    )
    assert verdict.first_wrong == "optimizer state"
    assert verdict.evidence["stages"][1][4] == [f"exp_avg of {QUERY}"]


def test_a_moment_that_is_off_comes_after_the_rate(resumed: Material, edit: Editor) -> None:
    editing = edit(taken_up(resumed)).change("optimizer_state_before", QUERY, bump, field="exp_avg_sq")
    verdict = judge(resumed, resumed=editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(f"{FIRST}optimizer state: exp_avg_sq of {QUERY} differs by ")
    assert verdict.first_wrong == QUERY
    editing = edit(taken_up(resumed)).change("optimizer_state_before", NORM, lambda m: 0 * m, field="exp_avg")
    editing.group(NORM)["settings"]["lr"] = 0.002
    verdict = judge(resumed, resumed=editing)
    assert verdict.sentence.endswith("; after it also in optimizer state")
    counted = edit(taken_up(resumed)).change("optimizer_state_before", NORM, lambda n: n - 1, field="step")
    assert f"step of {NORM} differs by 0.5 of its norm" in judge(resumed, resumed=counted).sentence


def test_weights_that_were_not_loaded_are_told_by_their_first_values(resumed: Material, edit: Editor) -> None:
    run = Edit(capture_of(resumed), edit(capture_of(resumed)).out / "unused")
    stale = run.tensor("parameter_before", QUERY, step=1)
    verdict = judge(resumed, resumed=edit(taken_up(resumed)).put("parameter_before", QUERY, stale))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.startswith(f"{FIRST}weights: {QUERY} differs by ")
    assert verdict.sentence.endswith("; it is as before step 1: nothing was loaded into it")
    assert verdict.first_wrong == QUERY
    verdict = judge(resumed, resumed=edit(taken_up(resumed)).change("parameter_before", NORM, torch.zeros_like))
    assert verdict.sentence == f"{FIRST}weights: {NORM} is zero"


def test_a_weight_in_another_dtype_or_in_one_run_only_is_named(resumed: Material, edit: Editor) -> None:
    lower = edit(taken_up(resumed)).change("parameter_before", NORM, lambda w: w.to(torch.bfloat16))
    assert f"{NORM} is held in bfloat16, uninterrupted in float32" in judge(resumed, resumed=lower).sentence
    lost = edit(taken_up(resumed)).drop("parameter_before", NORM)
    assert f"{NORM} is in the uninterrupted run only" in judge(resumed, resumed=lost).sentence
    renamed = edit(taken_up(resumed)).rename("parameter_before", NORM, "lm_head.bias")
    verdict = judge(resumed, resumed=renamed)
    assert f"{NORM} is in the uninterrupted run only (and 1 more of 25)" in verdict.sentence
    bent = edit(taken_up(resumed)).change("gradient", QUERY, lambda g: g.reshape(-1))
    assert "has shape (4096,), uninterrupted (64, 64)" in judge(resumed, resumed=bent).sentence


@pytest.mark.parametrize(("kind", "stage"), [("parameter_before", "weights"), ("gradient", "gradients")])
def test_sketches_hold_up_to_their_rounding_and_no_further(
    resumed: Material, edit: Editor, kind: str, stage: str
) -> None:
    assert judge(resumed, resumed=nudge(edit(taken_up(resumed)), kind, QUERY, 0.9e-13)).status is Status.PASS
    verdict = judge(resumed, resumed=nudge(edit(taken_up(resumed)), kind, QUERY, 1.2e-13))
    assert verdict.status is Status.FAIL
    assert f"first in its {stage}: {QUERY} differs by 1.2e-13" in verdict.sentence


def test_one_unit_in_the_last_place_is_seen_in_each_part(resumed: Material, edit: Editor) -> None:
    for kind, stage in (("gradient", "gradients"), ("parameter_after", "update")):
        verdict = judge(resumed, resumed=edit(taken_up(resumed)).change(kind, QUERY, bump))
        assert verdict.sentence.startswith(f"{FIRST}{stage}: {QUERY} differs by ")
    editing = edit(taken_up(resumed)).change("optimizer_state", QUERY, bump, field="exp_avg")
    assert judge(resumed, resumed=editing).sentence.startswith(f"{FIRST}update: exp_avg of {QUERY} differs by ")
    editing = edit(taken_up(resumed))
    editing.step()["micro_batches"][1]["backward"] *= 1.0 + 1e-12
    verdict = judge(resumed, resumed=editing)
    assert verdict.sentence.startswith(f"{FIRST}loss: the loss of micro-batch 1 is ")
    assert verdict.measurements[4].value == pytest.approx(1e-12, rel=1e-3)


def test_a_value_that_is_not_a_number_never_passes(resumed: Material, edit: Editor) -> None:
    nan = torch.tensor(torch.nan)
    editing = edit(taken_up(resumed)).change("gradient", QUERY, lambda g: g * nan)
    assert judge(resumed, resumed=editing).status is Status.FAIL
    editing = edit(taken_up(resumed))
    editing.step()["micro_batches"][0]["backward"] = "nan"
    assert judge(resumed, resumed=editing).status is Status.FAIL


def lose_random_state(editing: Edit) -> Edit:
    editing.step()["rng"]["torch"] = "0" * 64
    return editing


@pytest.mark.parametrize(
    ("path", "attributes"),
    [
        ("model.layers.0.self_attn", {"attention_dropout": 0.1}),
        ("model.layers.0.drop", {"class": "Dropout", "p": 0.1}),
        ("model.layers.0.self_attn.q_proj", {"class": "Linear", "lora_dropout.default": 0.05}),
    ],
)
def test_a_lost_random_state_is_a_fault_where_dropout_is_on(
    resumed: Material, edit: Editor, path: str, attributes: dict[str, Any]
) -> None:
    run = edit(capture_of(resumed))
    run.step(3)["scalars"].setdefault(path, {}).update(attributes)
    verdict = judge(resumed, run=run, resumed=lose_random_state(edit(taken_up(resumed))))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"{FIRST}random state: the random state of torch is another"
    assert verdict.first_wrong == "random state"
    sound = checkpoint_resume.judge(put(resumed, run=run_again(run, edit)))
    assert sound.status is Status.PASS
    assert "3 random states" in sound.sentence


def run_again(editing: Edit, edit: Editor) -> Edit:
    """Another copy of an edited capture, that was written already."""
    return edit(open_capture(editing.out))


def test_a_lost_random_state_without_dropout_is_said_and_passes(resumed: Material, edit: Editor) -> None:
    verdict = judge(resumed, resumed=lose_random_state(edit(taken_up(resumed))))
    assert verdict.status is Status.PASS
    assert verdict.sentence.endswith("; its random state is another, which nothing depends on while dropout is off")
    assert verdict.evidence["random_state"] == ["torch"]


def test_runs_that_need_not_repeat_bit_by_bit_are_held_to_the_noise_of_the_step(
    resumed: Material, healthy: Material, edit: Editor
) -> None:
    elsewhere = edit(taken_up(resumed))
    elsewhere.manifest["environment"]["hardware"]["cpu"] = "another kind"
    verdict = judge(resumed, resumed=elsewhere)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "the runs were on different CPUs, so that they need not repeat bit by bit, and there is no noise floor: "
        "no reference was computed"
    )
    noisy = replace(resumed, references=healthy.references)
    reference = first_reference(noisy)
    allowed = 16.0 * reference.floor(QUERY).total / reference.gradients[QUERY].norm
    for ratio, status in ((0.99, Status.PASS), (1.02, Status.FAIL)):
        gradient = edit(taken_up(resumed)).tensor("gradient", QUERY)
        editing = edit(taken_up(resumed)).put("gradient", QUERY, gradient * (1.0 + ratio * allowed))
        editing.manifest["environment"]["hardware"]["cpu"] = "another kind"
        verdict = judge(noisy, resumed=editing)
        assert verdict.status is status, verdict.sentence
        assert verdict.evidence["repeatable"] is False
    assert Allowance("", reference, 8.0).tensor("a buffer") == 1e-13
    assert Allowance("", reference, 8.0).loss == 16.0 * reference.loss_floor / reference.loss


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("hardware", "gpus", ["H200"]), "the runs used a GPU without deterministic kernels"),
        (("torch", "threads", 7), "the runs had different versions or settings of torch"),
    ],
)
def test_what_keeps_runs_from_repeating_is_named(
    resumed: Material, edit: Editor, change: tuple[str, str, Any], why: str
) -> None:
    part, key, value = change
    editing = edit(taken_up(resumed))
    editing.manifest["environment"][part][key] = value
    assert judge(resumed, resumed=editing).sentence.startswith(why)


def test_gpus_with_deterministic_kernels_repeat_where_they_are_the_same(resumed: Material, edit: Editor) -> None:
    def on_gpu(capture: Capture, name: str) -> Edit:
        editing = edit(capture)
        editing.manifest["environment"]["hardware"]["gpus"] = [name]
        editing.manifest["environment"]["torch"]["deterministic"] = True
        return editing

    same = put(resumed, run=on_gpu(capture_of(resumed), "A"), resumed=on_gpu(taken_up(resumed), "A"))
    assert checkpoint_resume.judge(same).status is Status.PASS
    other = put(resumed, run=on_gpu(capture_of(resumed), "A"), resumed=on_gpu(taken_up(resumed), "B"))
    assert checkpoint_resume.judge(other).sentence.startswith("the runs used different GPUs")


def test_noise_that_hides_a_tensor_leaves_it_open(
    resumed: Material, healthy: Material, edit: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_resume, "USEFUL_TENSOR_LIMIT", 1e-6)
    elsewhere = edit(taken_up(resumed))
    elsewhere.manifest["environment"]["hardware"]["cpu"] = "another kind"
    verdict = judge(replace(resumed, references=healthy.references), resumed=elsewhere)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("could be off by its own size unseen; ask for deterministic kernels")


def test_what_was_not_recorded_leaves_it_open(resumed: Material, edit: Editor) -> None:
    crashed = replace(resumed, run=replace(resumed.run, capture=None))
    assert checkpoint_resume.judge(crashed).sentence == "the run left no capture to judge; see run.completes"
    alone = checkpoint_resume.judge(replace(resumed, others={}))
    assert alone.status is Status.INCONCLUSIVE
    assert alone.sentence == "the run that is saved and resumed left no step to compare; see run.completes"
    assert judge(resumed, run=edit(capture_of(resumed)).drop_step(3)).sentence == (
        "step 3 was not recorded in both runs; record the last step of each"
    )
    assert judge(resumed, resumed=edit(taken_up(resumed)).drop_step(1)).status is Status.INCONCLUSIVE
    run, again = edit(capture_of(resumed)), edit(taken_up(resumed))
    for editing, step in ((run, 3), (again, 1)):
        for name in editing.names("parameter_before", step=step):
            editing.drop("parameter_before", name, step=step)
    verdict = judge(resumed, run=run, resumed=again)
    assert (verdict.status, verdict.sentence) == (
        Status.INCONCLUSIVE,
        "nothing was recorded of the step's weights",
    )


def test_a_run_of_one_step_is_skipped(resumed: Material) -> None:
    applies = checkpoint_resume.CHECK.applies
    assert applies(replace(resumed.spec, steps=1)) == (
        "a run of one step has no step after which it could be saved and resumed"
    )
    assert applies(replace(resumed.spec, steps=2)) is None
