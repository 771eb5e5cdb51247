"""Which framework runs a validation takes, and which checks it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from checks.check import Check, inconclusive, skipped
from checks.errors import BadRequest
from checks.registry import CHECKS, find_checks
from checks.roles import Role, spec_of
from checks.spec import RunSpec
from checks.verdict import Status, Verdict
from workers.planner import make_plan

SPEC = RunSpec("transformers", Path("model"), Path("data"))
ALL = tuple(CHECKS.values())
DEFAULT = find_checks(None)
PARALLEL = ("parallel.data", "parallel.replicas", "parallel.gradients")
GIVEN = ("serving.quantised", "transfer.sync")
PREFERENCES = ("data.preference", "step.rl_loss", "step.advantages", "step.rl_logprobs")


def test_the_default_checks_take_one_run_and_its_merged_twin() -> None:
    plan = make_plan(SPEC, DEFAULT)
    assert [run.role for run in plan.runs] == [Role.RUN, Role.MERGED]
    run, merged = plan.runs
    assert run.spec == SPEC
    assert merged.spec == replace(SPEC, batch=4, accumulation=1, steps=1)
    assert set(run.checks) == {check.name for check in DEFAULT} - {
        *PREFERENCES,
        *GIVEN,
        "step.lora",
        "data.packing",
        "convergence.health",
        *PARALLEL,
    }
    assert merged.checks == ("step.accumulation",)
    assert (run.captured_steps, merged.captured_steps) == ((1, 3), (1,))


def test_further_checks_add_the_runs_that_they_need_and_no_more() -> None:
    plan = make_plan(replace(SPEC, steps=4), find_checks(("step.lengths", "serving.cache", "checkpoint.resume")))
    assert [run.role for run in plan.runs] == [Role.RUN, Role.RESUMED, Role.PROBED]
    run, resumed, probed = plan.runs
    assert (resumed.spec.resume_after, resumed.captured_steps) == (3, (1,))
    assert (probed.spec.probed, probed.spec.steps, probed.checks) == (True, 1, ("step.lengths", "serving.cache"))
    assert run.checks == ("checkpoint.resume", "step.lengths", "serving.cache")


def test_checks_that_do_not_apply_are_skipped_with_their_reason() -> None:
    plan = make_plan(SPEC, DEFAULT)
    assert [(check.name, reason) for check, reason in plan.skipped] == [
        ("data.preference", "the run does not train on preferences (objective=sft)"),
        ("step.lora", "no adapters are asked for (lora=false)"),
        ("step.rl_loss", "the run is supervised fine-tuning (objective=sft)"),
        ("step.advantages", "the run does not train on completions of its own (objective=sft)"),
        ("step.rl_logprobs", "the run does not train on completions of its own (objective=sft)"),
        ("data.packing", "the run does not pack (packing=false)"),
        ("serving.quantised", "no exported weights were given; set synced to their directory"),
        ("transfer.sync", "no weights of a rollout engine were given; set synced to the directory of a dump"),
        *((name, "the run is of one process") for name in PARALLEL),
        ("convergence.health", "3 steps are too few to tell training from noise; set steps=20 or more"),
    ]
    assert "data.packing" not in [check.name for check in plan.judged]
    packed = make_plan(replace(SPEC, packing=True, steps=20, lora=True), DEFAULT)
    assert [check.name for check, _ in packed.skipped] == [*PREFERENCES, *GIVEN, *PARALLEL]
    alone = make_plan(replace(SPEC, batch=1, accumulation=1), find_checks(("step.accumulation",)))
    assert (alone.runs, alone.judged) == ((), ())
    assert alone.skipped[0][1] == "one row a step cannot be split"


def test_of_preferences_those_checks_are_judged_whose_reference_is_theirs() -> None:
    plan = make_plan(
        replace(SPEC, framework="trl", objective="dpo", steps=20), find_checks(("data", "step", "convergence"))
    )
    reasons = {check.name: reason for check, reason in plan.skipped}
    assert {"data.preference", "data.coverage", "step.rl_loss", "step.gradients"} <= {
        check.name for check in plan.judged
    }
    assert reasons["data.mask"] == "data.preference judges the rows of preferences"
    assert reasons["step.loss"] == reasons["convergence.curve"] == "its reference is that of supervised fine-tuning"
    assert reasons["convergence.health"].startswith("a preference's loss and gradient norm may die once")
    assert reasons["data.packing"] == "the run does not pack (packing=false)"
    assert not {"step.denominator", "step.moe", "step.loss", "convergence.overfit"} & {c.name for c in plan.judged}


def test_checks_without_the_merged_run_take_one_run() -> None:
    plan = make_plan(SPEC, find_checks(("step.denominator", "run.completes")))
    assert [run.role for run in plan.runs] == [Role.RUN]
    assert not plan.needs_reference
    assert plan.needs("step.denominator")
    assert not plan.needs("model.definition")


@pytest.mark.parametrize(
    "name",
    ["step.settings", "step.loss", "step.gradients", "step.accumulation", "data.packing", "model.definition"],
)
def test_checks_that_compare_with_a_reference_ask_for_one(name: str) -> None:
    assert make_plan(replace(SPEC, packing=True), find_checks((name,))).needs_reference


@pytest.mark.parametrize("name", ["run.completes", "step.denominator", "step.update"])
def test_identities_need_no_reference(name: str) -> None:
    assert not make_plan(SPEC, find_checks((name,))).needs_reference


@pytest.mark.parametrize(
    ("batch", "accumulation", "merged"),
    [(2, 2, (4, 1)), (3, 4, (12, 1)), (2, 1, (1, 2)), (4, 1, (2, 2)), (9, 1, (3, 3)), (15, 1, (5, 3)), (7, 1, (1, 7))],
)
def test_the_merged_run_has_the_same_rows_split_otherwise(
    batch: int, accumulation: int, merged: tuple[int, int]
) -> None:
    spec = spec_of(Role.MERGED, replace(SPEC, batch=batch, accumulation=accumulation))
    assert (spec.batch, spec.accumulation) == merged
    assert spec.batch * spec.accumulation == batch * accumulation
    assert spec == replace(SPEC, batch=merged[0], accumulation=merged[1], steps=1)


def test_a_run_of_one_step_is_captured_once() -> None:
    assert make_plan(replace(SPEC, steps=1), ALL).runs[0].captured_steps == (1,)
    assert make_plan(replace(SPEC, steps=2), ALL).runs[0].captured_steps == (1, 2)


def test_checks_are_found_by_name_in_reading_order() -> None:
    assert find_checks(None) == DEFAULT
    assert [check.name for check in find_checks(("all",))] == list(CHECKS)
    names = [check.name for check in find_checks(("step.update", "run.completes"))]
    assert names == ["run.completes", "step.update"]
    assert [check.level for check in find_checks(("data.packing", "model.definition"))] == ["data", "model"]


def test_an_unknown_check_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(BadRequest, match=r"checks: there is no check 'step\.gradient'; did you mean step\.gradients"):
        find_checks(("step.loss", "step.gradient"))
    with pytest.raises(BadRequest, match="there is no check '§'; `plumbline checks` lists them"):
        find_checks(("§",))


def test_every_check_says_what_it_catches_and_cannot_see() -> None:
    for check in ALL:
        for part in ("Reference:", "Catches:", "Cannot see:", "Cost:"):
            assert part in check.description, check.name
        assert check.claim


def test_a_check_applies_unless_it_says_otherwise() -> None:
    check = Check("a.b", "holds", "", lambda material: inconclusive("a.b", "nothing"))
    assert check.applies(SPEC) is None
    assert spec_of(Role.RUN, SPEC) is SPEC
    assert skipped("a.b", "why") == Verdict("a.b", Status.SKIPPED, "why")
    assert Verdict("a.b", Status.PASS, "", detection_limits={"a": 0.5, "b": 2.0}).detection_limit == 2.0
    assert Verdict("a.b", Status.PASS, "").detection_limit is None
