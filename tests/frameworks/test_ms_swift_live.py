"""ms-swift itself, in the environment that PLUMBLINE_ENV_MS_SWIFT names.

plumbline env create ms-swift==4.6.0 --with torch==2.13.0 --name swift
PLUMBLINE_ENV_MS_SWIFT=swift pytest -n 0 tests/frameworks/test_ms_swift_live.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.verdict import Status
from tests.frameworks.live import find_python
from workers.frameworks.interpreter import VARIABLE
from workers.frameworks.shims import VARIABLE as SHIMS
from workers.request import ValidationRequest
from workers.validate import validate

PYTHON = find_python("PLUMBLINE_ENV_MS_SWIFT")
SHIM = Path(__file__).parent / "shims" / "ms_swift_packing.py"

pytestmark = pytest.mark.skipif(PYTHON is None, reason="PLUMBLINE_ENV_MS_SWIFT names no environment with ms-swift")


@pytest.mark.usefixtures("_shared_cache")
@pytest.mark.parametrize(
    ("settings", "passed"),
    [
        ({}, 17),
        ({"assistant_only": True}, 17),
        ({"lora": True}, 17),
        ({"packing": True}, 17),
        ({"cp_size": 2}, 9),
        ({"objective": "dpo"}, 15),
        ({"objective": "dpo", "lora": True}, 16),
        ({"objective": "grpo", "temperature": 0.8}, 15),
        ({"objective": "grpo", "grpo_loss": "gspo", "num_iterations": 3, "lr": 2e-4}, 15),
    ],
)
def test_it_takes_the_step(
    settings: dict[str, object], passed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(PYTHON))
    monkeypatch.setenv(SHIMS, str(SHIM))
    request = ValidationRequest(
        framework="ms_swift",
        model="tiny:qwen3",
        data="preferences_sample" if "objective" in settings else "tulu3_sample",
        checks=None,
        settings=settings,
        inject=None,
        out=tmp_path / "out",
    )
    result = validate(request, on_progress=lambda progress: None, cancelled=lambda: False)
    wrong = [verdict for verdict in result.verdicts if verdict.status not in (Status.PASS, Status.SKIPPED)]
    assert not wrong, wrong
    assert sum(verdict.status is Status.PASS for verdict in result.verdicts) >= passed
