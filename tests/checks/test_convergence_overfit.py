"""convergence.overfit: the run on one batch, its plateau, and its verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checks.captures.log import LogRecord
from checks.convergence import convergence_overfit
from checks.convergence.convergence_overfit import find_plateau
from checks.material import Material, RunOutcome
from checks.references.trajectory import Power, Trajectory
from checks.registry import CHECKS, DEFAULT_CHECKS, find_checks
from checks.roles import OVERFIT_STEPS, Role, spec_of
from checks.verdict import Pattern, Status, Verdict
from tests.checks.conftest import Editor
from tests.checks.data_runs import make_spec
from workers.frameworks import adapter
from workers.planner import make_plan

EXACT = tuple(6.0 - 0.2 * step for step in range(OVERFIT_STEPS))
KNOWN = Trajectory(
    EXACT, (EXACT,) * 2, (1e-3,) * OVERFIT_STEPS, 8.0, power=Power(0.01, EXACT, False), shared=("a model",)
)


def judge(material: Material, edit: Editor, losses: tuple[float, ...], known: Trajectory | None = KNOWN) -> Verdict:
    assert material.capture is not None
    editing = edit(material.capture)
    editing.log = tuple(LogRecord(step, loss, None, None) for step, loss in enumerate(losses, start=1))
    run = RunOutcome("completed", 0, 1.0, None, editing.save(), None)
    return convergence_overfit.judge(replace(material, others={Role.OVERFIT: run}, overfit=known))


def test_a_batch_learned_as_far_as_the_reference_passes(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, (*EXACT[:-1], EXACT[-1] + 7e-3))
    assert verdict.status is Status.PASS
    assert verdict.sentence.startswith(
        "30 steps on one batch take the loss from 6 to 0.207, as they do the reference's"
    )
    assert verdict.measurements[0].threshold == pytest.approx(8e-3)
    assert verdict.detection_limits["learning rate"] == 0.01
    assert verdict.shared_code == ("a model",)
    json.dumps(verdict.evidence, allow_nan=False)


def test_a_batch_that_is_not_learned_as_far_fails(healthy: Material, edit: Editor) -> None:
    verdict = judge(healthy, edit, (*EXACT[:-1], EXACT[-1] + 9e-3))
    assert (verdict.status, verdict.pattern) == (Status.FAIL, Pattern.OBJECTIVE_SCALE)
    assert verdict.first_wrong == "loss of step 30"
    assert "the first 29 losses are right" in verdict.sentence
    shifted = judge(healthy, edit, tuple(loss + 1.0 for loss in EXACT))
    assert (shifted.status, shifted.pattern, shifted.first_wrong) == (Status.FAIL, None, "loss of step 1")


def test_a_plateau_that_the_reference_has_not_fails_even_where_the_end_is_right(
    healthy: Material, edit: Editor
) -> None:
    stuck = (*EXACT[:10], *[EXACT[10]] * 6, *EXACT[16:])
    verdict = judge(healthy, edit, stuck)
    assert verdict.status is Status.FAIL
    assert "it stays from step 11 to 16 while the reference's falls" in verdict.sentence
    assert verdict.measurements[0].holds
    assert (verdict.measurements[1].value, verdict.measurements[1].holds) == (5.0, False)
    assert verdict.evidence["plateau_from"] == 11


def test_a_plateau_needs_a_reference_that_clearly_falls() -> None:
    flat, falling = (5.0,) * 8, tuple(5.0 - 0.1 * step for step in range(8))
    assert find_plateau(flat, flat, (0.0,) * 8) is None
    assert find_plateau(flat, falling, (0.2,) * 8) == 1
    assert find_plateau(flat, falling, (0.3,) * 8) is None
    slow = tuple(5.0 - 0.012 * step for step in range(8))
    assert find_plateau(slow, falling, (0.0,) * 8) is None
    assert find_plateau(tuple(5.0 - 0.008 * step for step in range(8)), falling, (0.0,) * 8) == 1


@pytest.mark.parametrize(
    ("losses", "known", "said"),
    [
        (EXACT, replace(KNOWN, exact=tuple(6.0 - 0.05 * step for step in range(30))), "set a higher lr"),
        (EXACT[:20], KNOWN, "the framework logged no loss of step 21"),
        (EXACT, replace(KNOWN, floors=(0.5,) * 30), "right runs part by more than half of what is learned"),
        (EXACT, None, "the run on one batch left no capture"),
    ],
)
def test_what_cannot_be_judged_says_what_to_change(
    healthy: Material, edit: Editor, losses: tuple[float, ...], known: Trajectory | None, said: str
) -> None:
    verdict = judge(healthy, edit, losses, known)
    assert verdict.status is Status.INCONCLUSIVE
    assert said in verdict.sentence


def test_the_reason_for_a_missing_reference_is_the_materials(healthy: Material) -> None:
    verdict = convergence_overfit.judge(replace(healthy, no_overfit="dropout is on (mlp.p = 0.1)"))
    assert (verdict.status, verdict.sentence) == (Status.INCONCLUSIVE, "dropout is on (mlp.p = 0.1)")


def test_the_run_is_one_batch_again_and_again() -> None:
    spec = make_spec("gsm8k_sample", batch=3, accumulation=4, schedule="cosine", warmup_steps=2, packing=True)
    one = spec_of(Role.OVERFIT, spec)
    assert (one.first_rows, one.batch, one.accumulation, one.steps) == (3, 3, 1, 30)
    assert (one.schedule, one.warmup_steps, one.packing, one.lr) == ("constant", 0, True, spec.lr)
    assert spec.first_rows is None


def test_it_is_judged_when_it_is_asked_for_and_only_then() -> None:
    assert "convergence.overfit" not in DEFAULT_CHECKS
    assert convergence_overfit.CHECK in find_checks(("convergence",))
    plan = make_plan(make_spec("gsm8k_sample"), (CHECKS["convergence.overfit"],))
    assert [run.role for run in plan.runs] == [Role.RUN, Role.OVERFIT]
    assert plan.runs[1].captured_steps == (1, 30)
    assert "with lr=0 nothing is learned" in (
        CHECKS["convergence.overfit"].applies(make_spec("gsm8k_sample", lr=0.0)) or ""
    )


@pytest.mark.parametrize("framework", ["transformers", "trl", "plain"])
def test_the_framework_is_given_the_first_rows_alone(tmp_path: Path, framework: str) -> None:
    spec = replace(make_spec("gsm8k_sample"), framework=framework)
    for number in (None, 2):
        adapter(framework).prepare(replace(spec, first_rows=number), tmp_path / str(number))
    whole, first = ((tmp_path / name / "rows.jsonl").read_text().splitlines() for name in ("None", "2"))
    assert len(whole) > 30
    assert first == whole[:2]
