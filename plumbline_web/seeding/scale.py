"""All made-up rows of one scale."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from plumbline_web.problems.seed import SeededProblems, seed_problems
from plumbline_web.seeding.occurrences import seed_occurrences
from plumbline_web.validations.seed import Seeded, seed

PROBLEMS = 1_000
VALIDATIONS = 2_000
"""of one step of the scale: some 60,000 verdicts, with the checks that run by default"""


@dataclass(frozen=True)
class SeededScale:
    problems: SeededProblems
    validations: Seeded
    occurrences: int


@transaction.atomic
def seed_scale(scale: int) -> SeededScale:
    """Make a thousand problems and 2,000 validations for each step; 50 is what the pages are measured at."""
    problems = seed_problems(scale * PROBLEMS)
    validations = seed(scale * VALIDATIONS)
    return SeededScale(problems, validations, seed_occurrences())
