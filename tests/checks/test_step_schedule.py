"""step.schedule: the rate of every step against the asked schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.architecture import step_schedule
from checks.captures.capture import Capture
from checks.captures.log import LogRecord
from checks.material import Material
from checks.references.optimizer import learning_rate
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor


def capture_of(material: Material) -> Capture:
    assert material.capture is not None
    return material.capture


def judge(material: Material, edit: Editor, *rates: float | None) -> Verdict:
    """The verdict on a linear schedule with a warm-up step, where the log says these rates of steps 1 to 3."""
    spec = replace(material.spec, schedule="linear", warmup_steps=1)
    editing = edit(capture_of(material))
    editing.log = tuple(LogRecord(step, 5.0, 1.0, rate) for step, rate in enumerate(rates, start=1))
    for step in (1, 3):
        asked = learning_rate("linear", step, base_lr=spec.lr, warmup_steps=1, total_steps=3)
        for group in editing.step(step)["optimizer"]["groups"]:
            group["settings"]["lr"] = asked
    return step_schedule.judge(replace(material, spec=spec, run=replace(material.run, capture=editing.save())))


def test_the_schedule_of_a_healthy_run_is_judged_at_every_step(healthy: Material) -> None:
    verdict = step_schedule.judge(healthy)
    assert (verdict.status, verdict.sentence) == (Status.PASS, "3 steps have the rate that constant defines")
    assert verdict.detection_limits == {"rate": 1e-6}
    assert len(verdict.evidence["rates"]) == 3 + 2 * 2  # the log, and both groups at both captured steps


def test_a_linear_schedule_with_warm_up_is_0_base_half(healthy: Material, edit: Editor) -> None:
    assert judge(healthy, edit, 0.0, 1e-3, 5e-4).status is Status.PASS
    assert judge(healthy, edit, 0.0, 1e-3 * (1 + 9e-7), 5e-4).status is Status.PASS
    assert judge(healthy, edit, 0.0, 1e-3 * (1 + 1.1e-6), 5e-4).status is Status.FAIL


def test_a_rate_that_is_a_step_late_says_so(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, 1e-3, 5e-4, 0.0)
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.OBJECTIVE_SCALE)
    assert verdict.first_wrong == "learning rate at step 1"
    assert verdict.sentence.startswith(
        "the rate of the log at step 1 is 0.001, asked 0 (linear after 1 steps of warm-up)"
    )
    assert "3 of 7 rates are wrong" in verdict.sentence


def test_a_group_with_another_rate_fails_at_its_step(healthy: Material, edit: Editor) -> None:
    editing = edit(capture_of(healthy))
    editing.step(3)["optimizer"]["groups"][1]["settings"]["lr"] = 2e-3
    verdict = step_schedule.judge(replace(healthy, run=replace(healthy.run, capture=editing.save())))
    assert verdict.first_wrong == "learning rate at step 3"
    assert "group 1 of the optimizer at step 3 is 0.002, asked 0.001" in verdict.sentence


def test_steps_whose_rate_nobody_logged_make_it_inconclusive(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, 0.0, None, 5e-4)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence == "the rates of 1 of 3 steps were not logged, first of step 2"


def test_a_run_without_a_capture_is_inconclusive(healthy: Material) -> None:
    verdict = step_schedule.judge(replace(healthy, run=replace(healthy.run, capture=None)))
    assert verdict.sentence == "the run left no capture to judge; see run.completes"


def test_a_shift_by_whole_steps_is_found_in_the_log_and_the_groups(healthy: Material, edit: Editor) -> None:
    spec = replace(healthy.spec, schedule="linear", steps=3)
    editing = edit(capture_of(healthy))
    rates = [learning_rate("linear", step + 1, base_lr=1e-3, total_steps=3) for step in (1, 2, 3)]
    editing.log = tuple(LogRecord(step, 5.0, 1.0, rate) for step, rate in enumerate(rates, start=1))
    for step in (1, 3):
        for group in editing.step(step)["optimizer"]["groups"]:
            group["settings"]["lr"] = rates[step - 1]
    verdict = step_schedule.judge(replace(healthy, spec=spec, run=replace(healthy.run, capture=editing.save())))
    assert "every rate is that of 1 step later" in verdict.sentence


@pytest.mark.parametrize(("rate", "asked", "off"), [(0.0, 0.0, 0.0), (1.0, 0.0, float("inf")), (1.5, 1.0, 0.5)])
def test_a_rate_is_off_relative_to_the_asked_one(rate: float, asked: float, off: float) -> None:
    assert step_schedule._off(rate, asked) == off
