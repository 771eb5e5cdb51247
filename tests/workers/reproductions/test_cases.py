"""The cases that ship: each is called after a problem, can be run, and is what the kept results are of."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from checks.catalogue import load_problems
from checks.errors import BadRequest
from checks.registry import CHECKS
from checks.samples import SAMPLE_FILES
from workers.environments.resolving import parse_wish
from workers.reproductions.case import CASES, CIRCULAR, DRIVERS, HERE, Case, load_cases, load_reasons, read_case
from workers.reproductions.outcome import find_troubles, read_document
from workers.settings import parse_settings

RUN = "(run"
"""How the catalogue says that a release was run, and the problem seen."""

GOOD = """
driver = "hf_trainer.py"
shows = "a run"
[run]
framework = "transformers"
model = "tiny:llama"
data = "tulu3_sample"
[faulty]
packages = ["transformers==4.45.2"]
[fixed]
packages = ["transformers==4.46.3"]
[expects]
fails = ["step.loss"]
"""
SLUG = "hf-ga-mean-of-means"


def test_every_problem_that_a_release_was_seen_to_have_has_a_case_or_a_reason() -> None:
    seen = {each.slug for each in load_problems() if RUN in (each.shows_in_release or "")}
    cases, reasons = set(load_cases()), set(load_reasons())
    assert len(seen) == 19
    assert seen <= cases | reasons
    assert not cases & reasons
    assert (cases | reasons) <= {each.slug for each in load_problems()}
    assert all(reason.strip() and not reason.endswith(".") for reason in load_reasons().values())


@pytest.mark.parametrize("case", load_cases().values(), ids=lambda case: case.slug)
def test_a_case_names_releases_settings_and_checks_that_there_are(case: Case) -> None:
    for packages in (case.faulty, case.fixed):
        if packages:
            parse_wish(packages[0], packages[1:])
    parse_settings(case.settings, defaults={})
    assert set(case.fails) <= set(case.checks) <= set(CHECKS) - {CIRCULAR}
    assert case.data in SAMPLE_FILES or Path(case.data).is_file()
    assert case.shows.endswith(".")
    assert case.faulty != case.fixed


def test_drivers_are_scripts_of_their_own_and_each_serves_a_case() -> None:
    used = {case.driver for case in load_cases().values()}
    assert used == set(DRIVERS.glob("*.py"))
    for driver in used:
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(driver.read_text(encoding="utf-8")))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not imported & {"checks", "workers", "plumbline_capture", "plumbline_web"}, driver
        assert driver.stem not in imported  # a script's directory comes first when it imports
    assert {file.name for file in CASES.glob("*.jsonl")} == {
        Path(case.data).name for case in load_cases().values() if case.data not in SAMPLE_FILES
    }


def test_the_kept_results_are_of_these_cases_and_say_what_is_said_of_them() -> None:
    document = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    assert document["format"] == 1
    assert document["not_reproduced"] == dict(load_reasons())
    cases = load_cases()
    found = [read_document(each) for each in document["reproductions"]]
    assert [each.slug for each in found] == [slug for slug in cases if slug in {each.slug for each in found}]
    for each, said in zip(found, document["reproductions"], strict=True):
        case = cases[each.slug]
        assert each.digest == case.digest, f"{each.slug} has changed: run plumbline reproduce --all again"
        assert (each.faulty.requested, each.expected) == (case.faulty, case.fails)
        troubles = find_troubles(each.faulty, each.fixed, expected=case.fails, also=case.also, says=case.says)
        assert troubles == each.troubles
        assert said["reproduced"] is each.reproduced is (not troubles)
    assert sum(each.reproduced for each in found) >= 20


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("shows = ", "show = ", "'show' is no part of a case"),
        ("[expects]", "[expected]", "'expected' is no part of a case"),
        ('driver = "hf_trainer.py"', 'driver = "none.py"', "there is no driver 'none.py'"),
        ('"step.loss"', '"step.lost"', "there is no check 'step.lost'"),
        ('fails = ["step.loss"]', "fails = []", "expects no check to fail"),
        ('fails = ["step.loss"]', 'fails = ["run.completes"]', "does not say what run.completes says"),
        ("[fixed]", 'unfixed = "why"\n[fixed]', "states not just one of fixed and unfixed"),
        ('model = "tiny:llama"', "", "states not just one of [model] and run.model"),
        ("[run]", "[run", "is not TOML"),
    ],
)
def test_a_case_that_is_not_one_is_refused(tmp_path: Path, before: str, after: str, found: str) -> None:
    assert before in GOOD
    file = tmp_path / f"{SLUG}.toml"
    text = GOOD.replace(before, after, 1)
    if after.startswith("unfixed"):
        text = 'unfixed = "why"\n' + GOOD
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadRequest) as caught:
        read_case(file)
    assert found in str(caught.value)


def test_a_case_is_called_after_a_problem_and_changes_its_digest_with_its_driver(tmp_path: Path) -> None:
    file = tmp_path / "no-such-problem.toml"
    file.write_text(GOOD, encoding="utf-8")
    with pytest.raises(BadRequest, match="called after no problem"):
        read_case(file)
    file = file.rename(tmp_path / f"{SLUG}.toml")
    whole = read_case(file)
    assert whole.driver == DRIVERS / "hf_trainer.py"
    assert CIRCULAR not in whole.checks
    assert "step.gradients" in whole.checks
    (tmp_path / "hf_trainer.py").write_text("print('another')\n", encoding="utf-8")
    other = read_case(file)
    assert other.driver == tmp_path / "hf_trainer.py"
    assert other.digest != whole.digest
    assert whole.problem.url == "https://github.com/huggingface/transformers/pull/34191"
