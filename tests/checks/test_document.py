"""The page of all checks is made of their docstrings, and these are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from checks.catalogue.problem import load_problems
from checks.check import Check
from checks.document import render_checks
from checks.errors import BadRequest
from checks.levels import LEVELS
from checks.registry import CHECKS, DEFAULT_CHECKS, by_level, find_checks

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
CHECK_LIST = list(CHECKS.values())


def test_the_page_is_what_the_checks_say() -> None:
    assert PAGE.read_text() == render_checks(), "run `plumbline checks document > docs/checks.md`"


@pytest.mark.parametrize("check", CHECK_LIST, ids=lambda check: check.name)
def test_a_check_says_what_it_compares_catches_misses_and_costs(check: Check) -> None:
    said = inspect.cleandoc(check.description)
    found = re.findall(r"^(Reference|Catches|Cannot see|Cost): \S", said, re.MULTILINE)
    assert found == ["Reference", "Catches", "Cannot see", "Cost"]
    assert check.level in LEVELS
    assert check.claim[0].islower() or check.claim.startswith("N ")


@pytest.mark.parametrize("check", CHECK_LIST, ids=lambda check: check.name)
def test_every_problem_that_a_check_names_is_in_the_catalogue(check: Check) -> None:
    slugs = {problem.slug for problem in load_problems()}
    named = re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", check.description)
    assert [name for name in named if name not in slugs] == []


def test_checks_are_found_by_name_level_and_all_together() -> None:
    assert find_checks(("all",)) == tuple(CHECK_LIST)
    assert tuple(check.name for check in find_checks(None)) == DEFAULT_CHECKS
    assert {check.level for check in find_checks(("data", "serving.cache"))} == {"data", "serving"}
    assert sum(map(len, by_level().values())) == len(CHECK_LIST)
    with pytest.raises(BadRequest, match=r"there is no check 'step\.lose'.*step\.loss"):
        find_checks(("step.lose",))
