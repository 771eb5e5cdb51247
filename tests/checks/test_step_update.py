"""step.update: new parameters, moments and settings, each from both sides of its threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from checks.architecture import step_update
from checks.material import Material
from checks.references.update import ParameterUpdate, expected_clip_factor, replay_update
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, capture_of, swap

NORM = "model.norm.weight"


OUTPUT = "model.layers.0.self_attn.o_proj.weight"  # 4,096 elements: sampled whole


UP = "model.layers.1.mlp.up_proj.weight"  # more: sampled


def replay(material: Material, step: int = 1) -> dict[str, ParameterUpdate]:
    decaying = material.weight_decay_names
    return replay_update(material.spec, capture_of(material), step, decaying=decaying, total_steps=material.total_steps)


def judge(material: Material, editing: Edit) -> Verdict:
    return step_update.judge(swap(material, editing.save()))


def test_a_healthy_run_passes_with_parameters_and_moments_of_both_steps(healthy: Material) -> None:
    verdict = step_update.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "25 parameters move as adamw defines, at steps 1 and 3"
    assert len(verdict.measurements) == 2 * 25 * 3
    assert {m.name for m in verdict.measurements if m.name.split(" (")[0].split(" of ")[-1] == NORM} == {
        f"{label}{NORM} (step {step})" for step in (1, 3) for label in ("", "exp_avg of ", "exp_avg_sq of ")
    }
    assert verdict.evidence["learning_rate"] == 1e-3
    assert verdict.evidence["settings"] == []
    assert verdict.evidence["cosines"].keys() == verdict.evidence["scales"].keys()
    assert min(verdict.evidence["cosines"].values()) > 1 - 1e-6
    assert {"q_proj", "norm", "lm_head", "embed_tokens"} <= set(verdict.detection_limits)
    updates = [replay(healthy, step) for step in (1, 3)]
    limit = max(
        9.0 * u[OUTPUT.replace("0", layer)].floor / u[OUTPUT.replace("0", layer)].norm
        for u in updates
        for layer in "01"
    )
    assert verdict.detection_limits["o_proj"] == pytest.approx(limit)


def test_a_measurement_is_relative_to_the_update(healthy: Material) -> None:
    update = replay(healthy)[OUTPUT]
    measurement = next(m for m in step_update.judge(healthy).measurements if m.name == f"{OUTPUT} (step 1)")
    assert measurement.value == pytest.approx(update.error / update.norm)
    assert measurement.floor == pytest.approx(update.floor / update.norm)
    assert measurement.threshold == pytest.approx(8.0 * update.floor / update.norm)
    assert measurement.limit == pytest.approx(9.0 * update.floor / update.norm)
    moment = next(m for m in step_update.judge(healthy).measurements if m.name == f"exp_avg of {OUTPUT} (step 1)")
    error, floor = update.moments["exp_avg"]
    assert (moment.value, moment.floor, moment.threshold, moment.limit) == (error, floor, 8.0 * floor, 9.0 * floor)


@pytest.mark.parametrize(("name", "step"), [(NORM, 1), (OUTPUT, 1), (UP, 3)])
def test_a_new_parameter_holds_up_to_its_threshold(healthy: Material, edit: Editor, name: str, step: int) -> None:
    update = replay(healthy, step)[name]

    def judged(ratio: float) -> Verdict:
        editing = edit(healthy.capture)
        sample = capture_of(healthy).tensors(step, "parameter_before")[name].read("sample")
        assert sample is not None
        error = torch.zeros_like(update.expected)
        error[::2] = 1.0
        after = sample.double() + update.expected + error * (ratio * 8.0 * update.floor / error.norm())
        return judge(healthy, editing.put_sample("parameter_after", name, after, step=step))

    assert judged(0.99).status is Status.PASS
    verdict = judged(1.01)
    assert verdict.status is Status.FAIL
    assert verdict.first_wrong == f"{name} (step {step})"
    assert verdict.sentence.startswith(
        f"1 updates or moments of step {step} differ from the definition, worst {name} (step {step}): off by "
    )
    assert verdict.pattern is Pattern.OBJECTIVE_SCALE


@pytest.mark.parametrize("field", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_moment_holds_up_to_its_threshold(healthy: Material, edit: Editor, field: str, sign: float) -> None:
    capture = capture_of(healthy)
    gradient = capture.tensors(1, "gradient")[OUTPUT].read("full")
    assert gradient is not None
    clipped = gradient.double() * expected_clip_factor(healthy.spec, capture, 1)
    exact = 0.1 * clipped if field == "exp_avg" else 0.001 * clipped.square()
    floor = replay(healthy)[OUTPUT].moments[field][1]

    def judged(ratio: float) -> Verdict:
        moved = exact * (1.0 + sign * ratio * 8.0 * floor)
        return judge(healthy, edit(healthy.capture).put("optimizer_state", OUTPUT, moved, field=field))

    assert judged(0.999).status is Status.PASS
    verdict = judged(1.001)
    assert verdict.status is Status.FAIL
    assert verdict.first_wrong == f"{field} of {OUTPUT} (step 1)"


def test_the_floor_is_what_the_runs_arithmetic_makes_of_the_definition_and_the_parameters_rounding(
    healthy: Material,
) -> None:
    record = capture_of(healthy).tensors(1, "parameter_before")[OUTPUT]
    update = replay(healthy)[OUTPUT]
    assert update.floor > 2.0**-24 * record.norm
    assert update.floor < 3.0 * 2.0**-24 * record.norm
    assert all(4.0 * 2.0**-24 < floor < 8.0 * 2.0**-24 for _, floor in update.moments.values())


def test_every_update_off_by_one_factor_is_said_so(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for name in editing.names("gradient"):
        before = editing.tensor("parameter_before", name).double()
        after = editing.tensor("parameter_after", name).double()
        editing.put("parameter_after", name, before + 0.5 * (after - before))
    verdict = judge(healthy, editing)
    assert verdict.sentence.startswith("25 updates or moments of step 1 differ from the definition")
    assert verdict.sentence.endswith("; every update is 0.5× the definition")
    one = edit(healthy.capture)
    before = one.tensor("parameter_before", NORM).double()
    one.change("parameter_after", NORM, lambda after: before + 0.5 * (after.double() - before))
    assert "every update" not in judge(healthy, one).sentence


def test_adamws_first_update_alone_is_inconclusive(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit(healthy.capture).drop_step(3))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("only the first update was captured")
    assert len(verdict.measurements) == 75
    wrong = edit(healthy.capture).drop_step(3)
    wrong.group(NORM)["settings"]["lr"] = 1.0
    assert judge(healthy, wrong).status is Status.FAIL


def test_a_learning_rate_of_zero_at_every_captured_step_is_inconclusive(healthy: Material, edit: Editor) -> None:
    warming = replace(healthy, spec=replace(healthy.spec, warmup_steps=10))
    verdict = judge(warming, edit(healthy.capture).drop_step(3))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the learning rate is 0 at every captured step")
    # Step 3 of a warm-up has a rate, so it is judged and step 1 is not.
    assert step_update.judge(warming).evidence["step"] == 3


def test_a_step_without_parameters_on_both_sides_is_inconclusive(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for name in editing.names("parameter_after"):
        editing.drop("parameter_after", name)
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "step 1: no parameter was recorded before and after the update"
    crashed = replace(healthy, run=replace(healthy.run, capture=None))
    assert step_update.judge(crashed).sentence == "the run left no capture to judge; see run.completes"


@pytest.mark.parametrize("kinds", [("parameter_after",), ("parameter_before", "parameter_after"), ("gradient",)])
def test_a_trained_parameter_whose_update_was_not_recorded_leaves_it_open(
    healthy: Material, edit: Editor, kinds: tuple[str, ...]
) -> None:
    editing = edit(healthy.capture)
    lost = editing.names("gradient")[14:]
    for name in lost:
        for kind in kinds:
            editing.drop(kind, name)
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    first = next(name for name in editing.step()["trainable"] if name in lost)
    assert verdict.sentence == (
        f"step 1: the update of 11 of 25 trained parameters was not recorded; the first is {first}, without "
        f"{' and '.join(kinds)}; record the capture again"
    )
    assert sorted(verdict.evidence["unrecorded"]) == sorted(lost)


def test_a_wrong_update_counts_though_others_were_not_recorded(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).drop("parameter_after", NORM)
    editing.change("parameter_after", OUTPUT, lambda after: 2.0 * after, step=3)
    verdict = judge(healthy, editing)
    assert (verdict.status, verdict.first_wrong) == (Status.FAIL, f"{OUTPUT} (step 3)")


def test_a_parameter_without_samples_is_named_with_the_reason_that_the_recorder_gave(
    healthy: Material, edit: Editor
) -> None:
    editing = edit(healthy.capture)
    del editing.entry("parameter_after", NORM, step=3)["representations"]["sample"]
    editing.manifest["missing"] = [{"rank": 0, "step": 3, "what": "update", "why": "OSError: no space"}]
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "step 3: the update of 1 of 25 trained parameters was not recorded (OSError: no space); the first is "
        f"{NORM}, without sample; record the capture again"
    )


def test_a_parameter_without_a_gradient_is_not_stepped_and_not_missed(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    for kind in ("gradient", "parameter_after", "parameter_before"):
        editing.drop(kind, NORM, step=3)
    editing.step(3)["optimizer"]["without_gradient"] = [NORM]
    # the norm of the step's gradients is another one without it, and so is what is clipped
    verdict = step_update._judge_step(healthy, editing.save(), 3)
    assert "not recorded" not in verdict.sentence
    assert "unrecorded" not in verdict.evidence


def test_an_update_that_is_not_a_number_fails(healthy: Material, edit: Editor) -> None:
    nothing = torch.full((64,), float("nan"))
    assert judge(healthy, edit(healthy.capture).put("parameter_after", NORM, nothing)).status is Status.FAIL
    assert judge(healthy, edit(healthy.capture).put("gradient", NORM, nothing)).status is Status.FAIL


def test_an_update_that_drowns_in_the_parameters_rounding_is_inconclusive(healthy: Material, edit: Editor) -> None:
    # Weights held in bf16: the definition's change is far below what bf16 can add to them.
    tiny = replace(healthy.spec, precision="bf16_params", lr=1e-7)
    editing = edit(healthy.capture)
    for step in (1, 3):
        for group in editing.step(step)["optimizer"]["groups"]:
            group["settings"]["lr"] = 1e-7
        for name in editing.names("gradient", step=step):
            before = editing.tensor("parameter_before", name, step=step).clone()
            editing.put("parameter_after", name, before, step=step)
    verdict = judge(replace(healthy, spec=tiny), editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith("the update is smaller than the parameters' own rounding")
    floor = verdict.measurements[0].floor
    assert floor is not None
    assert verdict.measurements[0].threshold == pytest.approx(4.0 * floor)
    assert verdict.measurements[0].limit == pytest.approx(5.0 * floor)
    assert len(verdict.measurements) == 75


def test_a_parameter_that_should_not_move_is_measured_as_it_is(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    nothing = torch.zeros(64, dtype=torch.float64)
    editing.put("gradient", NORM, nothing)
    for field in ("exp_avg", "exp_avg_sq"):
        editing.put("optimizer_state", NORM, nothing, field=field)
    before = editing.tensor("parameter_before", NORM).double()
    editing.put("parameter_after", NORM, before + 1e-3)
    verdict = judge(healthy, editing)
    measurement = next(m for m in verdict.measurements if m.name == f"{NORM} (step 1)")
    assert measurement.value == pytest.approx(8e-3, rel=1e-9)
    assert measurement.threshold == pytest.approx(8.0 * 2.0**-24 * float(before.norm()))
    assert not measurement.holds
    assert not any(m.name == f"exp_avg of {NORM} (step 1)" for m in verdict.measurements)


def test_a_capture_without_a_step_is_inconclusive(healthy: Material, edit: Editor) -> None:
    verdict = step_update.judge(swap(healthy, edit(healthy.capture).drop_step(1).drop_step(3).save()))
    assert verdict.status is Status.INCONCLUSIVE


def scale_updates(healthy: Material, editing: Edit, factors: Callable[[int], float]) -> Edit:
    """Let the n-th parameter move by factors(n) × the definition at step 1."""
    updates = replay(healthy)
    for index, (name, update) in enumerate(updates.items()):
        before = capture_of(healthy).tensors(1, "parameter_before")[name].read("sample")
        assert before is not None
        after = before.double().flatten() + factors(index) * update.expected
        editing.put_sample("parameter_after", name, after)
    return editing


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (lambda n: 1.002, "every update is 1.002× the definition"),
        (lambda n: 1.0005, None),
        (lambda n: 0.5 if n < 12 else 0.505, None),
        (lambda n: 0.5 if n else 0.7, None),
        (lambda n: 0.5002 if n else 0.5, "every update is 0.5× the definition"),
    ],
)
def test_every_update_is_a_multiple_only_where_all_are_the_same_one(
    healthy: Material, edit: Editor, factors: Callable[[int], float], said: str | None
) -> None:
    verdict = judge(healthy, scale_updates(healthy, edit(healthy.capture), factors))
    assert verdict.status is Status.FAIL
    assert verdict.sentence.endswith(f"; {said}") if said else "every update" not in verdict.sentence


def test_a_parameter_that_should_not_move_is_no_multiple(healthy: Material, edit: Editor) -> None:
    editing = scale_updates(healthy, edit(healthy.capture), lambda n: 0.5)
    nothing = torch.zeros(64, dtype=torch.float64)
    editing.put("gradient", NORM, nothing)
    editing.put("parameter_after", NORM, editing.tensor("parameter_before", NORM))
    assert judge(healthy, editing).sentence.endswith("; every update is 0.5× the definition")


def test_the_worst_update_is_the_one_furthest_over_its_threshold(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    norm, head = "model.layers.0.input_layernorm.weight", "lm_head.weight"
    for name, ratio in ((norm, 2.0), (head, 5.0)):
        update = replay(healthy)[name]
        before = capture_of(healthy).tensors(1, "parameter_before")[name].read("sample")
        assert before is not None
        off = ratio * 8.0 * update.floor / len(update.expected) ** 0.5
        editing.put_sample("parameter_after", name, before.double().flatten() + update.expected + off)
    verdict = judge(healthy, editing)
    values = {m.name: m.value for m in verdict.measurements}
    assert values[f"{norm} (step 1)"] > values[f"{head} (step 1)"]
    assert verdict.sentence.startswith(
        f"2 updates or moments of step 1 differ from the definition, worst {head} (step 1): off by "
    )


def test_an_update_is_inconclusive_once_most_parameters_could_be_off_by_their_own_size(
    healthy: Material, edit: Editor
) -> None:
    def judged(lr: float) -> tuple[int, Verdict]:
        """How many parameters' limits are above 1, and the verdict, when every update is exact."""
        spec = replace(healthy.spec, precision="bf16_params", lr=lr)
        material = replace(healthy, spec=spec)
        editing = scale_updates(material, edit(healthy.capture), lambda n: 1.0)
        for group in editing.step()["optimizer"]["groups"]:
            group["settings"]["lr"] = lr
        capture = editing.save()
        verdict = step_update._judge_step(material, capture, 1)
        limits = [m.limit for m in verdict.measurements if " of " not in m.name]
        assert len(limits) == 25
        return sum(limit is not None and limit > 1.0 for limit in limits), verdict

    low, high = 1e-5, 1e-1  # all are too noisy, and none
    seen: dict[int, Status] = {}
    for _ in range(40):
        middle = (low * high) ** 0.5
        count, verdict = judged(middle)
        seen[count] = verdict.status
        if {12, 13} <= set(seen):
            break
        low, high = (middle, high) if count > 12 else (low, middle)
    assert seen[12] is Status.PASS
    assert seen[13] is Status.INCONCLUSIVE
