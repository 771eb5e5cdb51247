"""Whole validations on real workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline_web.accounts.models import User
from plumbline_web.validations.domain import submit
from plumbline_web.validations.submission import Submission
from tests.web.running import wait_for, worker

pytestmark = pytest.mark.django_db(transaction=True)

TRAINER = Submission(framework="transformers", model="tiny:qwen3", data="gsm8k_sample")


def test_a_submitted_validation_passes(owner: User, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log"):
        validation, new = submit(TRAINER, owner=owner)
        assert new
        (done,) = wait_for(validation)
    assert (done.state, done.verdict, done.passed, done.skipped) == ("done", "pass", 8, 1)
