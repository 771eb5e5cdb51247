"""The matching benchmark: what it keeps of a run, what it tells the matcher, and how it counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.detection.expected import EXPECTED
from benchmarks.detection.split import half_of_fault
from benchmarks.matching.causes import CAUSES
from benchmarks.matching.command import main
from benchmarks.matching.findings import FILE, Recorded, list_cases, read_findings
from benchmarks.matching.report import list_guesses, list_misses, list_rows, list_views, write_documents
from benchmarks.matching.score import FaultMatch, Placed, Recognition, Scores, Stability, score
from benchmarks.matching.views import KNOWLEDGE, Asked, View, describe, list_right, read_class
from checks.catalogue.problem import load_problems
from checks.errors import BadRequest
from checks.faults import FAULTS, fault

NAME = "fault/temperature-forgotten/trl"
SLUG = "temperature-forgotten"


def verdict(check: str, sentence: str, pattern: str | None = "objective-scale") -> dict[str, Any]:
    return {
        "check": check,
        "sentence": sentence,
        "pattern": pattern,
        "first_wrong": None,
        "measurements": [],
        "evidence": {},
    }


TEMPERATURE = verdict(
    "step.rl_logprobs", "log-probabilities of the policy are those at a temperature of 1, and 0.7 was asked"
)
GRADIENTS = verdict("step.gradients", "the forward agrees and 25 of 25 gradients differ")


def recorded(*failures: dict[str, Any], seed: int = 0, took_effect: bool = True) -> Recorded:
    return Recorded(NAME, seed, took_effect, None, failures)


def match(place: int | None, *, kin: int | None = None, **fields: Any) -> FaultMatch:
    placed = Placed("step.update", place, place if kin is None else kin, ("other-problem",), ("why",))
    found = FaultMatch(SLUG, "trl-grpo-temperature", View.MODELLED, KNOWLEDGE[0].name, Asked.RIGHT, 55, placed)
    return replace(found, **fields)


def scores(*matches: FaultMatch) -> Scores:
    return Scores(matches, ("template-ignored",), (), Stability(0, 0, ()), Recognition(0, 0, ()))


def test_the_finding_asked_about_is_that_of_the_fault_s_check_or_the_first_that_names_a_pattern() -> None:
    unnamed = verdict("run.completes", "it ended", pattern=None)
    found = recorded(unnamed, GRADIENTS, TEMPERATURE)
    assert found.first == GRADIENTS
    assert found.of_checks(["step.rl_logprobs"]) == TEMPERATURE
    assert found.of_checks(["step.update"]) == GRADIENTS
    assert recorded(unnamed).first == unnamed
    assert recorded().first is None


def test_a_view_tells_what_its_name_says_and_never_the_fault() -> None:
    (case,) = list_cases([f"/{SLUG}/"])
    problem = next(each for each in load_problems() if each.slug == fault(SLUG).problem)
    found = recorded(GRADIENTS, TEMPERATURE)
    modelled, unknown, given = (describe(found, case, problem, view, Asked.RIGHT) for view in View)
    assert modelled is not None
    assert unknown is not None
    assert given is not None
    assert [each.framework for each in (modelled, unknown, given)] == [problem.framework, "", "trl"]
    assert (modelled.packages, unknown.packages) == ({}, {})
    assert given.packages["trl"]
    assert given.model_class == read_class(case) != ""
    assert modelled.signature.check == list_right(case)[0] == fault(SLUG).check
    assert [each.check for each in modelled.also] == ["step.gradients"]
    assert SLUG not in repr((modelled, unknown, given))
    assert describe(recorded(), case, problem, View.GIVEN, Asked.FIRST) is None


def test_a_fault_is_scored_by_the_place_of_its_problem_and_of_its_kind() -> None:
    cases = list_cases([f"/{SLUG}/"])
    found = score(cases, {(NAME, 0): recorded(TEMPERATURE), (NAME, 1): recorded(TEMPERATURE, seed=1)})
    assert len(found.matches) == len(KNOWLEDGE) * len(View) * len(Asked)
    (ours,) = found.of(half_of_fault(SLUG), View.MODELLED)
    assert (ours.problem, ours.placed.check) == ("trl-grpo-temperature", "step.rl_logprobs")
    assert ours.placed.place == 1
    assert ours.rivals == sum(each.framework in ("trl", "transformers", "accelerate") for each in load_problems())
    assert found.stability == Stability(1, 1, ())
    assert found.recognition == Recognition(1, 1, ())


def test_a_run_that_fails_nothing_is_a_miss_and_one_without_effect_does_not_count() -> None:
    cases = list_cases([f"/{SLUG}/"])
    (ours,) = score(cases, {(NAME, 0): recorded()}).of(half_of_fault(SLUG), View.MODELLED)
    assert not ours.within(415)
    assert list(list_misses(scores(ours))) == [f"{ours.half}: {SLUG} → {ours.problem}: no check fails"]
    idle = score(cases, {(NAME, 0): recorded(TEMPERATURE, took_effect=False)})
    assert (idle.matches, idle.not_in_force) == ((), (SLUG,))
    assert score(cases, {}).matches == ()


def test_a_fault_without_a_problem_is_left_out() -> None:
    without = next(each for each in FAULTS if each.problem is None and each.slug in EXPECTED)
    (case,) = list_cases([f"/{without.slug}/"])
    found = score([case], {(case.name, 0): replace(recorded(GRADIENTS), case=case.name)})
    assert (found.matches, found.without_problem) == ((), (without.slug,))


@pytest.mark.parametrize(("places", "short"), [((1, 1, 1), 0), ((1, 2, 3), 1), ((9, 2, 3), 2), ((None, None, 1), 2)])
def test_the_bars_are_of_the_held_out_half(places: tuple[int | None, ...], short: int) -> None:
    held = next(each.slug for each in FAULTS if half_of_fault(each.slug) == "held out")
    calibration = next(each.slug for each in FAULTS if half_of_fault(each.slug) == "calibration")
    ours = [match(place, slug=held) for place in places]
    assert len(scores(*ours).shortfalls()) == short
    assert scores(*(replace(each, slug=calibration) for each in ours)).shortfalls() == ()
    assert scores(*(replace(each, asked=Asked.FIRST) for each in ours)).shortfalls() == ()


def test_tables_count_the_problem_and_its_kind_apart() -> None:
    half = half_of_fault(SLUG)
    found = scores(match(1), match(4, kin=1), match(None, kin=3))
    *_, everything = list_rows(found, half)
    assert everything[:2] == ("all", "3")
    assert [cell.split(" ")[0] for cell in everything[2:]] == ["1/3", "2/3", "2/3", "3/3"]
    rows = list(list_views(found, half))
    assert len(rows) == len(View) * (len(Asked) + len(KNOWLEDGE) - 1) + 1
    assert rows[-1] == list_guesses(found, half)
    assert rows[-1][4:6] == (f"{1 / 55:.1%}", f"{5 / 55:.1%}")


def test_a_miss_says_what_came_first_and_why() -> None:
    near, far = list_misses(scores(match(4, kin=1), match(None, kin=9)))
    assert near.endswith("place 4 of step.update; other-problem comes first, which is of the same recurrence group")
    assert "not among the problems that were looked at" in far
    assert set(CAUSES) <= {each.slug for each in FAULTS}


def test_documents_hold_every_place(tmp_path: Path) -> None:
    write_documents(scores(match(1), match(2, view=View.UNKNOWN)), tmp_path)
    content = json.loads((tmp_path / "matching.json").read_text())
    assert [each["place"] for each in content["matches"]] == [1, 2]
    assert ["reasons" in each for each in content["matches"]] == [True, False]
    text = (tmp_path / "matching.md").read_text()
    assert text.startswith("# Matching\n")
    assert "asked about the finding of the first: " in text


def test_findings_are_read_again_without_a_line_that_was_cut_short(tmp_path: Path) -> None:
    file = tmp_path / FILE
    lines = [json.dumps(recorded(GRADIENTS).__dict__), json.dumps(recorded(TEMPERATURE).__dict__), '{"case": "x']
    file.write_text("\n".join(lines))
    assert read_findings(file) == {(NAME, 0): recorded(TEMPERATURE)}
    assert read_findings(tmp_path / "absent.jsonl") == {}
    file.write_text('{"case": "x"}\n')
    with pytest.raises(BadRequest, match=r"line 1 of .* is no finding"):
        read_findings(file)
    file.write_text("{\n" + lines[0] + "\n")
    with pytest.raises(BadRequest, match=r"line 1 of .* is no JSON"):
        read_findings(file)


def test_bad_requests_end_with_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE).write_text("")
    assert main(["--out", str(tmp_path)]) == 3
    assert "add --resume, or name a new directory" in capsys.readouterr().err
    assert main(["--only", "no-such-fault"]) == 3
    assert "no case has 'no-such-fault' in its name" in capsys.readouterr().err
