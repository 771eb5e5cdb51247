"""The detection benchmark: its registry is complete, its split stays, its scoring is right, its runner runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.detection.case import Case
from benchmarks.detection.causes import ALARM_CAUSES, CAUSES, LEFT_OUT
from benchmarks.detection.command import choose_cases, main
from benchmarks.detection.expected import EXPECTED
from benchmarks.detection.faulty import choose_family, choose_framework, list_faulty
from benchmarks.detection.forking import TIMED_OUT, fork, wait
from benchmarks.detection.healthy import list_healthy
from benchmarks.detection.rates import Rate
from benchmarks.detection.report import list_alarms, list_misses, list_rows, write_documents
from benchmarks.detection.result import CaseResult, CheckResult, read_results
from benchmarks.detection.score import Scores, score, score_fault
from benchmarks.detection.split import half_of_family, half_of_fault
from checks.catalogue.problem import load_problems
from checks.errors import BadRequest
from checks.faults import FAULTS, Fault
from checks.models import FAMILIES
from checks.registry import CHECKS
from checks.roles import Role
from checks.verdict import Pattern
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python

ROOT = Path(__file__).parents[2]

every_fault = pytest.mark.parametrize("each", FAULTS, ids=lambda each: each.slug)


def test_there_are_enough_faults_of_every_pattern_and_stage() -> None:
    assert len({each.slug for each in FAULTS}) == len(FAULTS) >= 60
    assert {each.pattern for each in FAULTS} == set(Pattern)
    stages = {each.check.split(".")[0] for each in FAULTS}
    assert stages >= {"data", "step", "checkpoint", "serving"}


@every_fault
def test_a_fault_is_modelled_on_a_problem_of_the_catalogue_and_has_an_expectation(each: Fault) -> None:
    urls = {problem.slug: (problem.url, *problem.related_urls) for problem in load_problems()}
    if each.problem is not None:
        assert each.url in urls[each.problem]
    if each.slug not in EXPECTED:
        return
    expected = EXPECTED[each.slug]
    assert set(expected.checks_of(each)) <= set(CHECKS)
    re.compile(expected.where)
    assert set(expected.families) <= set(FAMILIES)


def test_every_fault_of_one_process_has_an_expectation_and_none_is_left_of_a_fault_that_is_gone() -> None:
    assert set(EXPECTED) <= {each.slug for each in FAULTS}
    others = [each for each in FAULTS if each.slug not in EXPECTED]
    assert {each.check.split(".")[0] for each in others if each.check != "checkpoint.reshard"} <= {"parallel"}
    assert len(list_faulty()) == len(EXPECTED) >= 60


def test_every_faulty_case_can_be_run_and_has_the_runs_that_its_checks_read() -> None:
    for case in list_faulty():
        adapter(case.framework).check(case.spec())
        assert case.fault is not None
        judged = {check.name for check in case.checks()}
        expected = EXPECTED[case.fault]
        fault = next(each for each in FAULTS if each.slug == case.fault)
        assert set(expected.checks_of(fault)) <= judged, case.name
        assert case.framework in expected.frameworks


def test_healthy_variants_are_many_and_of_every_family_precision_and_framework() -> None:
    cases = list_healthy()
    assert len({case.name for case in cases}) == len(cases) >= 120
    specs = [case.spec() for case in cases]
    assert {case.family for case in cases} == set(FAMILIES)
    assert {case.framework for case in cases} == {"transformers", "trl", "plain"}
    assert {spec.precision for spec in specs} == {"float32", "bf16", "bf16_params", "fp16"}
    assert {spec.attention for spec in specs} == {"eager", "sdpa"}
    assert {spec.optimizer for spec in specs} == {"adamw", "sgd"}
    for name in ("packing", "lora", "gradient_checkpointing", "assistant_only"):
        assert {getattr(spec, name) for spec in specs} == {False, True}, name
    assert {role for case in cases for role in case.roles} == {*Role} - {Role.SINGLE, Role.RESHARDED}


def test_causes_are_stated_of_cases_that_there_are() -> None:
    assert set(CAUSES) <= set(EXPECTED)
    assert set(ALARM_CAUSES) <= {case.name for case in list_healthy()}
    assert not any(case.spec().packing and ("packed", case.family) in LEFT_OUT for case in list_healthy())


def test_the_split_is_what_it_was() -> None:
    held_out = {family for family in FAMILIES if half_of_family(family) == "held out"}
    assert held_out == {"deepseek_v32", "glm4_moe", "llama", "qwen2", "qwen3_5_text", "qwen3_next"}
    fixed = {slug: half_of_fault(slug) for slug in SPLIT}
    assert fixed == SPLIT
    for half in ("calibration", "held out"):
        assert len([each for each in FAULTS if half_of_fault(each.slug) == half]) >= 0.4 * len(FAULTS)


SPLIT = {
    "bos-doubled": "held out",
    "rmsnorm-eps": "held out",
    "attention-scale": "held out",
    "saved-in-bf16": "held out",
    "weight-scaled": "calibration",
    "rope-theta": "calibration",
    "wrong-loss-count": "calibration",
    "gradients-bf16": "calibration",
}


def test_a_fault_is_run_on_a_family_of_its_half_where_one_can_have_it() -> None:
    half = half_of_fault("wrong-loss-count")
    assert half_of_family(choose_family("wrong-loss-count", ())) == half
    assert choose_family("wrong-loss-count", ("gemma3_text",)) == "gemma3_text"
    assert choose_framework("wrong-loss-count", ("trl",)) == "trl"
    chosen = {choose_framework(each.slug, ("transformers", "trl")) for each in FAULTS}
    assert chosen == {"transformers", "trl"}


def make_check(check: str, status: str, pattern: str | None = None, first_wrong: str | None = None) -> CheckResult:
    return CheckResult(check, status, "", pattern, first_wrong, seconds=0.5, megabytes=2.0)


def make_result(case: str, *checks: CheckResult, took_effect: bool | None = None, fingerprint: str = "") -> CaseResult:
    return CaseResult(case, took_effect, fingerprint or case, checks, 1.0, 1.0, 3.0)


FAULTY = Case("fault/rmsnorm-eps/trl", "trl", "llama", fault="rmsnorm-eps")
RIGHT = make_check("step.settings", "fail", "model-definition", "model.norm.variance_epsilon")
ELSEWHERE = make_check("step.gradients", "fail", "precision", "model.layers.0.mlp")


@pytest.mark.parametrize(
    ("checks", "detected", "right_check", "right_place", "right_pattern", "why"),
    [
        ((RIGHT,), True, True, True, True, ""),
        ((RIGHT, ELSEWHERE), True, True, True, True, ""),
        (
            (ELSEWHERE, RIGHT),
            True,
            True,
            True,
            False,
            "step.gradients names precision, not model-definition",
        ),
        (
            (ELSEWHERE,),
            True,
            False,
            False,
            False,
            "step.gradients fails, not step.settings; named model.layers.0.mlp, not norm.*eps; "
            "step.gradients names precision, not model-definition",
        ),
        (
            (replace(RIGHT, first_wrong="model.norm.bias"),),
            True,
            True,
            False,
            True,
            "named model.norm.bias, not norm.*eps",
        ),
        ((replace(RIGHT, pattern=None),), True, True, True, False, "no pattern is named"),
        (
            (replace(RIGHT, status="pass"), make_check("step.loss", "inconclusive")),
            False,
            False,
            False,
            False,
            "no check fails (inconclusive: step.loss)",
        ),
    ],
)
def test_a_fault_is_scored_by_check_place_and_first_named_pattern(
    checks: Sequence[CheckResult],
    detected: bool,
    right_check: bool,
    right_place: bool,
    right_pattern: bool,
    why: str,
) -> None:
    found = score_fault(FAULTY, make_result(FAULTY.name, *checks, took_effect=True))
    assert (found.detected, found.right_check, found.right_place, found.right_pattern) == (
        detected,
        right_check,
        right_place,
        right_pattern,
    )
    assert found.why == why
    assert (found.half, found.pattern, found.precision) == ("held out", Pattern.MODEL_DEFINITION, "float32")


def test_where_only_a_stage_can_be_named_the_right_check_names_it() -> None:
    case = replace(FAULTY, name="fault/bos-doubled/trl", fault="bos-doubled")
    right = make_check("data.template", "fail", "loss-mask", "anything")
    assert score_fault(case, make_result(case.name, right, took_effect=True)).right_place
    wrong = make_check("step.loss", "fail", "loss-mask", "labels")
    assert not score_fault(case, make_result(case.name, wrong, took_effect=True)).right_place


HEALTHY = [Case(f"healthy/{name}", "trl", "llama") for name in ("a", "b", "c", "d")]


def make_scores(fault_checks: Sequence[CheckResult], *, took_effect: bool = True) -> Scores:
    """One fault; a passes, b repeats a, c alarms, d breaks."""
    results = {
        FAULTY.name: make_result(FAULTY.name, *fault_checks, took_effect=took_effect),
        "healthy/a": make_result("healthy/a", make_check("step.loss", "pass"), fingerprint="one"),
        "healthy/b": make_result("healthy/b", make_check("step.loss", "fail"), fingerprint="one"),
        "healthy/c": make_result("healthy/c", make_check("step.loss", "error"), make_check("eval", "inconclusive")),
        "healthy/d": replace(make_result("healthy/d"), broken="it ended"),
    }
    return score([FAULTY, *HEALTHY], results)


def test_a_bitwise_repeat_and_a_broken_case_are_no_evidence() -> None:
    scores = make_scores([RIGHT])
    assert [found.case for found in scores.healthy_of("held out")] == ["healthy/a", "healthy/c"]
    assert scores.healthy[1].repeats == "healthy/a"
    assert scores.healthy[2].inconclusive == ("eval",)
    assert scores.healthy_of("calibration") == []
    assert scores.seconds == 15.0


def test_what_falls_short_is_said() -> None:
    assert make_scores([RIGHT]).shortfalls() == ("false alarm: healthy/c", "broken: healthy/d: it ended")
    assert make_scores([replace(RIGHT, status="pass")]).shortfalls()[:3] == (
        "detected 0/1 (0.0% to 97.5%) is under 95%",
        "right module or stage 0/1 (0.0% to 97.5%) is under 90%",
        "first-named pattern 0/1 (0.0% to 97.5%) is under 85%",
    )


def test_a_fault_that_was_never_in_force_counts_nowhere_and_is_named() -> None:
    scores = make_scores([RIGHT], took_effect=False)
    assert scores.faults_of("held out") == []
    assert f"never in force: {FAULTY.name}" in scores.shortfalls()
    assert list(list_misses(scores)) == [f"misnamed (held out, float32): {FAULTY.name}: the fault was never in force"]


def test_a_check_costs_the_mean_of_its_cases() -> None:
    (loss,) = [cost for cost in make_scores([RIGHT]).costs if cost.check == "step.loss"]
    assert (loss.judged, loss.healthy, loss.alarms, loss.inconclusive) == (3, 3, 2, 0)
    assert (loss.seconds, loss.megabytes) == (0.5, 2.0)


def test_the_documents_hold_the_tables_and_every_score(tmp_path: Path) -> None:
    scores = make_scores([RIGHT, ELSEWHERE])
    write_documents(scores, tmp_path)
    content = json.loads((tmp_path / "detection.json").read_text())
    assert [entry["slug"] for entry in content["faults"]] == ["rmsnorm-eps"]
    assert content["shortfalls"] == list(scores.shortfalls())
    text = (tmp_path / "detection.md").read_text()
    row = next(row for row in list_rows(scores, "held out") if row[0] == "model-definition")
    assert row[1:] == ("1", *["1/1 (2.5% to 100.0%)"] * 4)
    assert f"| {' | '.join(row)} |" in text
    assert list(list_alarms(scores)) == [
        "false alarm (held out, float32): healthy/b: step.loss",
        "false alarm (held out, float32): healthy/c: step.loss",
        "not judged (held out): healthy/d: it ended",
    ]


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        (0, 10, 0.0, 0.30850),
        (5, 10, 0.18709, 0.81291),
        (10, 10, 0.69150, 1.0),
        (1, 100, 0.00025, 0.05446),
        (0, 0, 0.0, 1.0),
    ],
)
def test_intervals_are_those_of_clopper_and_pearson(hits: int, total: int, low: float, high: float) -> None:
    assert Rate(hits, total).interval == pytest.approx((low, high), abs=1e-5)


def test_a_line_cut_short_is_left_out_and_the_latest_result_counts(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    first, later = make_result("x", RIGHT), make_result("x", ELSEWHERE)
    file.write_text(f"{first.to_line()}\n{later.to_line()[:40]}\n{later.to_line()}\n{first.to_line()[:30]}")
    assert read_results(file) == {"x": later}
    assert read_results(tmp_path / "none") == {}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"loss": 1.0}\n')
    with pytest.raises(BadRequest, match=r"line 1 of .* is no result"):
        read_results(file)


def test_cases_are_chosen_by_a_part_of_their_name() -> None:
    assert [case.name for case in choose_cases(["healthy/plain/llama"])] == ["healthy/plain/llama"]
    assert len(choose_cases([])) == len(EXPECTED) + len(list_healthy())
    with pytest.raises(BadRequest, match="no case has 'plian' in its name"):
        choose_cases(["plian"])


def test_results_are_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.jsonl").touch()
    assert main(["--only", "healthy/plain/llama", "--out", str(tmp_path)]) == 3
    assert "add --resume, or name a new directory" in capsys.readouterr().err


def test_a_fork_ends_with_its_own_code_or_at_its_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def fail() -> int:
        raise ValueError("on purpose")

    def hang() -> int:
        time.sleep(60)
        return 0

    def end_itself() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert wait(fork(lambda: 7, log=log), limit_s=10) == 7
    assert wait(fork(lambda: sys.exit("said"), log=log), limit_s=10) == 1
    assert wait(fork(fail, log=log), limit_s=10) == 1
    assert "ValueError: on purpose" in log.read_text()
    assert wait(fork(hang, log=log), limit_s=0.2) == TIMED_OUT
    assert wait(fork(end_itself, log=log), limit_s=10) == 137


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, CaseResult]:
    """A fault and a healthy run through the forks, and a second command that finds both done."""
    out = tmp_path_factory.mktemp("detection") / "out"
    names = ("fault/weight-scaled", "healthy/one-row/qwen2")
    arguments = ["--out", str(out), "--resume", "--cores", "1", *(part for name in names for part in ("--only", name))]
    command = [framework_python(), "-m", "benchmarks.detection", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (out / "results.jsonl").read_text().split()
    assert main(arguments) == 0
    assert (out / "results.jsonl").read_text().split() == lines
    return read_results(out / "results.jsonl")


def test_the_forked_runner_sees_a_fault_and_passes_a_healthy_run(outcome: Mapping[str, CaseResult]) -> None:
    (slug,) = [name for name in outcome if name.startswith("fault/")]
    wrong, healthy = outcome[slug], outcome["healthy/one-row/qwen2"]
    assert wrong.took_effect is True
    first = wrong.failures[0]
    assert (first.check, first.pattern) == ("step.settings", "state-transfer")
    assert first.first_wrong == "model.layers.0.mlp.down_proj.weight"
    said = {check.check: check.sentence for check in wrong.failures}
    assert set(said) == {"step.settings", "step.loss", "step.gradients"}, said
    assert healthy.took_effect is None
    assert healthy.failures == ()
    passed = {check.check for check in healthy.checks if check.status == "pass"}
    assert {"run.completes", "data.mask", "step.gradients", "step.accumulation", "step.update"} <= passed
    assert all(check.megabytes > 1.0 for check in healthy.checks)
    assert healthy.fingerprint != wrong.fingerprint
