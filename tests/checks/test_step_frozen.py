"""step.frozen: who moves and who does not."""

from __future__ import annotations

from dataclasses import replace

from checks.architecture import step_frozen
from checks.captures.capture import Capture
from checks.material import Material
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit

QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"


def capture_of(material: Material) -> Capture:
    assert material.capture is not None
    return material.capture


def judge(material: Material, editing: Edit) -> Verdict:
    return step_frozen.judge(replace(material, run=replace(material.run, capture=editing.save())))


def under_adapters(material: Material) -> Material:
    """The same run as if only the final norm had been asked to be trained."""
    return replace(material, spec=replace(material.spec, lora=True), expected_adapters=(NORM,))


def still(editing: Edit, *names: str) -> Edit:
    """Let parameters be after the last step what they were before the first."""
    for name in names:
        editing.put("parameter_after", name, editing.tensor("parameter_before", name), step=3)
    return editing


def test_every_parameter_of_a_healthy_run_moves(healthy: Material) -> None:
    verdict = step_frozen.judge(healthy)
    count = len(capture_of(healthy).tensors(1, "parameter_before"))
    assert (verdict.status, verdict.sentence) == (
        Status.PASS,
        f"{count} trained parameters move, 0 frozen ones do not",
    )


def test_one_that_does_not_move_in_spite_of_its_gradient_fails(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, still(edit(capture_of(healthy)), QUERY))
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.OBJECTIVE_SCALE, QUERY)
    assert verdict.sentence == f"{QUERY} has a gradient and does not move (1 in all)"


def test_one_without_a_gradient_need_not_move(healthy: Material, edit: Editor) -> None:
    editing = still(edit(capture_of(healthy)), QUERY)
    for step in (1, 3):
        editing.change("gradient", QUERY, lambda gradient: 0.0 * gradient, step=step)
    assert judge(healthy, editing).status is Status.PASS


def test_a_frozen_one_that_moves_fails_by_name_and_size(healthy: Material, edit: Editor) -> None:
    material = under_adapters(healthy)
    every = [name for name in capture_of(healthy).tensors(3, "parameter_after") if name not in (NORM, QUERY)]
    verdict = judge(material, still(edit(capture_of(healthy)), *every))
    assert (verdict.status, verdict.pattern, verdict.first_wrong) == (Status.FAIL, Pattern.MODEL_DEFINITION, QUERY)
    assert verdict.sentence.startswith(f"{QUERY} is not asked to be trained and moves by ")
    assert verdict.sentence.endswith("of its norm (1 in all)")
    healthy_one = judge(material, still(edit(capture_of(healthy)), *every, QUERY))
    assert healthy_one.status is Status.PASS
    assert healthy_one.sentence == f"1 trained parameters move, {len(every) + 1} frozen ones do not"


def test_a_movement_of_one_element_is_seen(healthy: Material, edit: Editor) -> None:
    material = under_adapters(healthy)
    every = [name for name in capture_of(healthy).tensors(3, "parameter_after") if name != NORM]
    editing = still(edit(capture_of(healthy)), *every)
    moved = editing.tensor("parameter_before", QUERY)
    moved[3, 5] += 1e-6
    assert judge(material, editing.put("parameter_after", QUERY, moved, step=3)).first_wrong == QUERY


def test_without_a_rate_nothing_can_be_told(healthy: Material, edit: Editor) -> None:
    names = list(capture_of(healthy).tensors(3, "parameter_after"))
    material = replace(healthy, spec=replace(healthy.spec, lr=0.0))
    verdict = judge(material, still(edit(capture_of(healthy)), *names))
    assert verdict.status is Status.INCONCLUSIVE
    assert "the learning rate is 0" in verdict.sentence


def test_a_run_that_recorded_no_parameters_is_inconclusive(healthy: Material, edit: Editor) -> None:
    editing = edit(capture_of(healthy))
    editing.manifest["tensors"] = [e for e in editing.manifest["tensors"] if not e["kind"].startswith("parameter")]
    assert judge(healthy, editing).status is Status.INCONCLUSIVE
    gone = step_frozen.judge(replace(healthy, run=replace(healthy.run, capture=None)))
    assert gone.status is Status.INCONCLUSIVE


def test_one_whose_dtype_rounds_its_update_away_is_not_said_to_be_frozen(healthy: Material, edit: Editor) -> None:
    spec = replace(healthy.spec, precision="bf16_params", lr=1e-7)
    editing = edit(capture_of(healthy))
    for step in (1, 3):
        editing.change("parameter_before", QUERY, lambda held: held.bfloat16().to(held.dtype), step=step)
    run = replace(healthy.run, capture=still(editing, QUERY).save())
    verdict = step_frozen.judge(replace(healthy, spec=spec, run=run))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith(f"{QUERY} does not move (1 in all), and its update is smaller than its own ")
    assert verdict.evidence["rounded_away"] == [QUERY]
    large = step_frozen.judge(replace(healthy, spec=replace(spec, lr=1e-1), run=run))
    assert (large.status, large.first_wrong) == (Status.FAIL, QUERY)
