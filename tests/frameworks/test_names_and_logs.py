"""Parameter names are the checkpoint's, and a training log is read number by number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from checks.captures.log import LogRecord
from checks.errors import CaptureError
from workers.frameworks.transformers import logs as transformers_logs
from workers.frameworks.transformers.names import name_parameter
from workers.frameworks.trl import logs as trl_logs
from workers.frameworks.trl import names as trl_names


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("module.model.norm.weight", "model.norm.weight"),
        ("base_model.model.model.norm.weight", "model.norm.weight"),
        ("base_model.model.model.layers.1.mlp.up_proj.base_layer.weight", "model.layers.1.mlp.up_proj.weight"),
        ("base_model.model.model.layers.1.up_proj.lora_B.default.weight", "model.layers.1.up_proj.lora_B.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)  # fmt: skip
def test_wrappers_are_taken_off(source: str, name: str) -> None:
    assert name_parameter(source, tied=False) == name
    assert trl_names.name_parameter is name_parameter


def test_a_tied_head_bears_the_name_of_its_embedding() -> None:
    assert name_parameter("base_model.model.lm_head.weight", tied=True) == "model.embed_tokens.weight"
    assert name_parameter("model.norm.weight", tied=True) == "model.norm.weight"


def write(directory: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "trainer_state.json").write_text(text)
    return directory


def test_a_log_gives_a_record_a_step_and_leaves_the_summary_out(tmp_path: Path) -> None:
    history = [
        {"step": 1, "loss": 2.5, "grad_norm": 1.5, "learning_rate": 1e-3, "epoch": 0.1},
        {"step": 2, "loss": math.nan, "grad_norm": math.inf},
        {"step": 2, "train_loss": 9.0, "train_runtime": 1.0},
    ]
    first, second = transformers_logs.read_log(write(tmp_path, {"log_history": history}))
    assert first == LogRecord(1, 2.5, 1.5, 1e-3, seconds=0.5)
    assert (second.step, second.grad_norm, second.learning_rate) == (2, math.inf, None)
    assert math.isnan(second.loss or 0.0)
    assert trl_logs.read_log is transformers_logs.read_log


@pytest.mark.parametrize(
    "content", ["{", "[]", {}, {"log_history": 3}, {"log_history": [{"loss": 1.0}]}, {"log_history": [3]}]
)
def test_what_is_no_log_is_named(tmp_path: Path, content: Any) -> None:
    with pytest.raises(CaptureError, match=r"trainer_state.json: is no Trainer log \(.*\); run the training again"):
        transformers_logs.read_log(write(tmp_path, content))


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"trainer_state.json: is missing; look in the run's log for why"):
        transformers_logs.read_log(tmp_path)
