"""The exit code follows from the verdicts alone."""

from __future__ import annotations

import pytest

from checks.verdict import Status, Verdict
from workers.request import exit_code

PASS, FAIL, UNSURE, ERROR, SKIP = Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.ERROR, Status.SKIPPED


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((PASS,), 0),
        ((PASS, SKIP), 0),
        ((FAIL,), 1),
        ((PASS, FAIL), 1),
        ((FAIL, ERROR), 1),
        ((FAIL, UNSURE, SKIP, PASS), 1),
        ((PASS, ERROR), 2),
        ((PASS, UNSURE), 2),
        ((ERROR,), 2),
        ((UNSURE,), 2),
        ((SKIP,), 2),
        ((SKIP, SKIP), 2),
        ((), 2),
    ],
)
def test_a_fail_outweighs_doubt_and_nothing_passed_is_doubt(statuses: tuple[Status, ...], code: int) -> None:
    verdicts = [Verdict(f"check.{index}", status, "") for index, status in enumerate(statuses)]
    assert exit_code(verdicts) == code
    assert exit_code(list(reversed(verdicts))) == code
