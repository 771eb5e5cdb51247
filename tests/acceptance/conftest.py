"""Whole validations, as `plumbline validate --local` runs them: real frameworks, real captures, real references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from checks.verdict import Status, Verdict
from workers.request import ValidationRequest, ValidationResult
from workers.settings import parse_settings
from workers.validate import validate

DATA = {"transformers": "gsm8k_sample", "trl": "tulu3_sample"}
Validate = Callable[..., ValidationResult]


@pytest.fixture
def run_validation(tmp_path: Path) -> Validate:
    def run(
        framework: str,
        *settings: str,
        model: str = "tiny:qwen3",
        checks: tuple[str, ...] | None = None,
        inject: str | None = None,
        full: bool = False,
    ) -> ValidationResult:
        request = ValidationRequest(
            framework=framework,
            model=model,
            data=DATA[framework],
            checks=checks,
            settings=parse_settings(list(settings), defaults={}),
            inject=inject,
            out=tmp_path / "out",
            full=full,
        )
        return validate(request, on_progress=lambda progress: None, cancelled=lambda: False)

    return run


def by_name(result: ValidationResult) -> Mapping[str, Verdict]:
    return {verdict.check: verdict for verdict in result.verdicts}


def statuses(result: ValidationResult) -> dict[str, Status]:
    return {verdict.check: verdict.status for verdict in result.verdicts}
