"""Verdicts from sketches alone equal those from whole tensors, on the healthy runs and on edited ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from checks.captures.capture import Capture
from checks.material import Material
from checks.registry import CHECKS
from checks.roles import Role
from checks.verdict import Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit, first_reference, swap, swap_merged
from tests.checks.exact import beside, exact_of
from workers.judging import judge

QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

JUDGED = ("step.settings", "step.loss", "step.denominator", "step.gradients", "step.update", "step.accumulation")


def judge_all(material: Material) -> dict[str, Verdict]:
    return {name: CHECKS[name].judge(material) for name in JUDGED}


def half_of_all(material: Material, editing: Edit) -> None:
    for name in editing.names("gradient"):
        editing.change("gradient", name, lambda gradient: 0.5 * gradient)


def scale_of_all(material: Material, editing: Edit) -> None:
    for name in editing.names("gradient"):
        editing.put("gradient", name, (1.0 + 1.5e-6) * exact_of(first_reference(material), name))


def one_head(material: Material, editing: Edit) -> None:
    def change(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.double()
        changed[16:32] *= 1.0 + 3e-5
        return changed

    editing.change("gradient", QUERY, change)


def one_row(material: Material, editing: Edit) -> None:
    def change(gradient: torch.Tensor) -> torch.Tensor:
        changed = gradient.double()
        changed[7] *= 1.001
        return changed

    editing.change("gradient", HEAD, change)


def put_beside(ratio: float) -> Callable[[Material, Edit], None]:
    def change(material: Material, editing: Edit) -> None:
        editing.put("gradient", QUERY, beside(first_reference(material), QUERY, ratio))

    return change


def zero_gradient(material: Material, editing: Edit) -> None:
    editing.change("gradient", NORM, torch.zeros_like)


def no_gradient(material: Material, editing: Edit) -> None:
    editing.drop("gradient", NORM)


def one_weight(material: Material, editing: Edit) -> None:
    def change(weight: torch.Tensor) -> torch.Tensor:
        changed = weight.double()
        changed[0, 0] += 1e-6
        return changed

    editing.change("parameter_before", HEAD, change)


def scaled_weight(material: Material, editing: Edit) -> None:
    editing.change("parameter_before", QUERY, lambda weight: 1.001 * weight.double())


def wrong_update(material: Material, editing: Edit) -> None:
    editing.change("parameter_after", QUERY, lambda weight: weight + 1e-4)


def not_a_number(material: Material, editing: Edit) -> None:
    editing.put("gradient", NORM, torch.full((64,), float("nan")))


EDITS: dict[str, tuple[Callable[[Material, Edit], None], str | None]] = {
    "nothing": (lambda material, editing: None, None),
    "an error of 0.9 thresholds": (put_beside(0.9), None),
    "an error of 1.1 thresholds": (put_beside(1.1), "step.gradients"),
    "half of every gradient": (half_of_all, "step.gradients"),
    "a scale that only all together show": (scale_of_all, "step.gradients"),
    "one head": (one_head, "step.gradients"),
    "one vocabulary row": (one_row, "step.gradients"),
    "a gradient of zero": (zero_gradient, "step.gradients"),
    "a missing gradient": (no_gradient, "step.gradients"),
    "one element of a weight": (one_weight, "step.settings"),
    "a weight + 0.1 %": (scaled_weight, "step.settings"),
    "another update": (wrong_update, "step.update"),
    "a gradient that is not a number": (not_a_number, "step.gradients"),
}


@pytest.fixture(scope="module")
def bare_merged(healthy: Material, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    merged = healthy.capture_of(Role.MERGED)
    assert merged is not None
    return Edit(merged, tmp_path_factory.mktemp("merged") / "capture").keep_sketches().save()


@pytest.mark.parametrize("label", EDITS)
def test_sketches_give_the_verdicts_of_whole_tensors(
    healthy: Material, bare_merged: Capture, edit: Editor, label: str
) -> None:
    change, fails = EDITS[label]
    editing = edit(healthy.capture)
    change(healthy, editing)
    whole = editing.save()
    sketched = edit(whole).keep_sketches().save()
    assert all(record.read("full") is None for record in sketched.tensors(1, "gradient").values())
    full = judge_all(swap(healthy, whole))
    bare = judge_all(swap_merged(swap(healthy, sketched), bare_merged))
    for name in JUDGED:
        assert (full[name].status, full[name].first_wrong) == (bare[name].status, bare[name].first_wrong), name
        assert full[name].pattern is bare[name].pattern, name
    failed = [name for name, verdict in full.items() if verdict.status is Status.FAIL]
    assert (fails in failed) if fails else ("step.gradients" not in failed)


def test_a_packed_runs_sketches_give_the_same_verdicts(packed: Material, edit: Editor) -> None:
    sketched = swap(packed, edit(packed.capture).keep_sketches().save())
    for name in ("step.settings", "step.loss", "step.gradients", "step.update", "data.packing"):
        assert CHECKS[name].judge(packed).status is CHECKS[name].judge(sketched).status is Status.PASS


def test_gradients_of_which_no_values_were_recorded_leave_their_checks_open(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture).keep_sketches()
    for entry in editing.manifest["tensors"]:
        if entry["kind"] == "gradient":
            del entry["representations"]["sketch"]
    verdicts = judge([CHECKS[name] for name in JUDGED], swap(healthy, editing.save()))
    for name in ("step.gradients", "step.accumulation"):
        assert verdicts[name].status is Status.INCONCLUSIVE
    first = next(iter(first_reference(healthy).gradients))
    assert verdicts["step.gradients"].sentence == (
        f"{first} was recorded neither in full nor as a sketch; record the capture again with `plumbline-capture run`"
    )
    assert not [verdict.sentence for verdict in verdicts.values() if verdict.status is Status.ERROR]


@pytest.mark.parametrize(
    ("what", "left_open"),
    [
        ("optimizer", {"step.update", "step.schedule"}),
        ("model", {"step.settings", "step.precision", "environment.settings", "environment.known_problems"}),
    ],
)
def test_a_model_or_optimizer_that_could_not_be_recorded_leaves_open_what_needs_it(
    healthy: Material, edit: Editor, what: str, left_open: set[str]
) -> None:
    editing = edit(healthy.capture)
    for step in (1, 3):
        editing.step(step)[what] = None
    editing.manifest["missing"] = [{"rank": 0, "step": 1, "what": what, "why": "TypeError: odd (state.py:1)"}]
    checks = [CHECKS[name] for name in (*JUDGED, *sorted(left_open), "step.frozen", "data.mask") if name in CHECKS]
    verdicts = judge(checks, swap(healthy, editing.save()))
    sentence = f"the {what} of step 1 was not recorded (TypeError: odd (state.py:1)); record the capture again with "
    assert {name for name, verdict in verdicts.items() if verdict.sentence.startswith(sentence)} == left_open
    assert {verdicts[name].status for name in left_open} == {Status.INCONCLUSIVE}
    assert {verdict.status for name, verdict in verdicts.items() if name not in left_open} == {Status.PASS}
