"""The first wrong module of a model too large to record whole: its layer first, then what is inside."""

from __future__ import annotations

from pathlib import Path

import pytest

import workers.validate
from tests.acceptance.conftest import Validate, by_name


def test_a_large_model_is_traced_layer_by_layer(
    run_validation: Validate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.validate, "TRACE_BYTES", 0)
    result = run_validation("transformers", checks=("step.loss",), inject="attention-scale")
    assert by_name(result)["step.loss"].first_wrong == "model.layers.0.self_attn"
    assert [run.capture.name for run in result.runs if run.capture] == ["run", "second-pass", "third-pass"]
    assert [phase.name for phase in result.phases].count("first divergence") == 2
