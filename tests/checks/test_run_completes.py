"""run.completes: every ending, and a capture that is not whole or not finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from plumbline_capture.manifest import NOT_REACHED

from checks.lifecycle import run_completes
from checks.material import Material, RunOutcome
from checks.roles import Role
from checks.verdict import Measurement, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.editing import Edit

NORM = "model.norm.weight"


def judge(material: Material, editing: Edit) -> Verdict:
    return run_completes.judge(replace(material, run=replace(material.run, capture=editing.save())))


def ended(material: Material, ending: str, exit_code: int | None, **changes: object) -> Verdict:
    outcome = replace(material.run, ending=ending, exit_code=exit_code, seconds=12.0, **changes)  # type: ignore[arg-type]
    return run_completes.judge(replace(material, run=outcome))


def test_a_run_that_ended_by_itself_passes(healthy: Material) -> None:
    verdict = run_completes.judge(healthy)
    assert verdict.status is Status.PASS
    assert verdict.sentence == "ended with exit code 0 after 1 s; 50 gradients recorded, all finite"
    assert verdict.evidence["ending"] == "completed"
    assert verdict.measurements == (Measurement("non-finite values", 0.0, 0.0, True, unit="count"),)


@pytest.mark.parametrize(
    ("ending", "exit_code", "how"),
    [
        ("failed", 1, "ended with exit code 1"),
        ("failed", 139, "ended with exit code 139"),
        ("timed_out", 143, "did not end within its time limit and was stopped"),
        ("out_of_memory", 137, "went over its memory limit and was stopped"),
        ("completed", 3, "ended with exit code 3"),
        ("failed", 0, "ended with exit code 0"),
    ],
)
def test_a_run_that_did_not_end_by_itself_fails(healthy: Material, ending: str, exit_code: int, how: str) -> None:
    verdict = ended(healthy, ending, exit_code, last_error="ValueError: no (train.py:3)")
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"the framework's run {how} after 12 s (ValueError: no (train.py:3))"
    said = ended(healthy, ending, exit_code, last_output="step 3 of 10")
    assert said.sentence.endswith("(last output: step 3 of 10)")
    assert ended(healthy, ending, exit_code).sentence.endswith("(it printed nothing)")


def test_a_cancelled_run_is_inconclusive(healthy: Material) -> None:
    verdict = ended(healthy, "cancelled", 143)
    assert (verdict.status, verdict.sentence) == (
        Status.INCONCLUSIVE,
        "the run was cancelled before it ended",
    )


def test_a_run_without_a_usable_capture_is_inconclusive(healthy: Material) -> None:
    nothing = ended(healthy, "completed", 0, capture=None)
    assert nothing.status is Status.INCONCLUSIVE
    assert nothing.sentence == "the run ended without a usable capture: no optimizer step was seen"
    unreadable = ended(healthy, "completed", 0, capture=None, unreadable="a.safetensors: is truncated; record again.")
    assert unreadable.sentence.endswith("capture: a.safetensors: is truncated; record again.")


def test_a_run_without_an_optimizer_step_fails(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit(healthy.capture).drop_step(1).drop_step(3))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == "the run ended without taking an optimizer step"


def test_a_run_whose_steps_could_not_be_recorded_is_inconclusive(healthy: Material, edit: Editor) -> None:
    """A full disk is no fault of the framework."""
    reached = {"rank": 0, "step": 1, "what": "step", "why": NOT_REACHED}
    full = {"rank": 0, "step": 1, "what": "files", "why": "OSError: [Errno 28] No space left on device"}
    cut = {"rank": 0, "step": None, "what": "rank", "why": "its file was cut short"}
    editing = edit(healthy.capture).drop_step(1).drop_step(3)
    editing.manifest["missing"] = [reached, full, cut]
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == (
        "the run ended, but none of its steps was recorded "
        "(files of step 1: OSError: [Errno 28] No space left on device; rank: its file was cut short)"
    )
    stepless = edit(healthy.capture).drop_step(1).drop_step(3)
    stepless.manifest["missing"] = [reached]
    assert judge(healthy, stepless).status is Status.FAIL


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["gradient", "parameter_after"])
@pytest.mark.parametrize("step", [1, 3])
def test_one_value_that_is_not_finite_fails(
    healthy: Material, edit: Editor, kind: str, step: int, value: float
) -> None:
    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[5] = value
        return changed

    verdict = judge(healthy, edit(healthy.capture).change(kind, NORM, spoil, step=step))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"1 recorded values are not finite, first {kind} {NORM}, step {step}"
    assert verdict.first_wrong == f"{kind} {NORM}, step {step}"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("key", "label"), [("model_loss", "model loss"), ("backward", "back-propagated loss")])
def test_a_loss_that_is_not_finite_fails(healthy: Material, edit: Editor, key: str, label: str, value: str) -> None:
    editing = edit(healthy.capture)
    editing.step(3)["micro_batches"][1][key] = value
    verdict = judge(healthy, editing)
    assert verdict.status is Status.FAIL
    assert verdict.sentence == f"1 recorded values are not finite, first {label} of micro-batch 1, step 3"


def test_a_loss_that_was_not_recorded_is_no_fault(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.step()["micro_batches"][0] |= {"model_loss": None, "backward": None}
    assert judge(healthy, editing).status is Status.PASS


def test_a_capture_that_is_not_whole_is_inconclusive(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    editing.manifest["missing"] = [
        {"rank": rank, "step": 3, "what": f"gradient {rank}", "why": "no memory"} for rank in (0, None, 2, 3)
    ]
    verdict = judge(healthy, editing)
    assert verdict.status is Status.INCONCLUSIVE
    lost = "; ".join(f"gradient {rank} of step 3: no memory" for rank in (0, None, 2))
    assert verdict.sentence == f"the run ended but was not recorded whole ({lost})"


def test_a_module_that_ran_twice_in_a_micro_batch_is_recorded_whole_enough(healthy: Material, edit: Editor) -> None:
    editing = edit(healthy.capture)
    again = "called again in one micro-batch; only its first call is recorded"
    editing.manifest["missing"] = [{"rank": 0, "step": 1, "what": "module of model.rotary_emb", "why": again}]
    assert judge(healthy, editing).status is Status.PASS


def test_the_merged_run_must_complete_too(healthy: Material) -> None:
    crashed = RunOutcome("failed", 1, 3.0, "KeyError: x (a.py:1)", None, None)
    verdict = run_completes.judge(replace(healthy, others={Role.MERGED: crashed}))
    assert verdict.status is Status.FAIL
    assert verdict.sentence == "the framework's run ended with exit code 1 after 3 s (KeyError: x (a.py:1))"
    assert run_completes.judge(replace(healthy, others={})).status is Status.PASS
    assert ended(healthy, "timed_out", 1).status is Status.FAIL
