"""Reading what a run printed, where it left no trainer_state.json."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.captures.log import LogRecord
from workers.frameworks.transformers.logs import parse_log, read_log
from workers.frameworks.trl import logs as trl_logs

PRINTED = """\
Loading weights: 100%|##########| 25/25 [00:00<00:00, 9124.40it/s]
{'loss': '6.874', 'grad_norm': '11.26', 'learning_rate': '0.001', 'epoch': '0.0625'}
fault in force: wrong-loss-count: the loss is divided by 494, not by 493
{'loss': 6.64, 'grad_norm': nan, 'learning_rate': 0.001, 'epoch': 0.125}
{'loss': inf, 'grad_norm': -inf}
{'train_runtime': '0.9', 'train_samples_per_second': '14.24', 'train_loss': '6.71', 'epoch': '0.1875'}
"""


def test_each_printed_loss_is_a_step_and_other_lines_are_passed_over() -> None:
    first, second, third = parse_log(PRINTED)
    assert first == LogRecord(1, 6.874, 11.26, 0.001, seconds=pytest.approx(0.3))
    assert (second.step, second.loss, second.seconds) == (2, 6.64, pytest.approx(0.6))
    assert math.isnan(second.grad_norm or 0.0)
    assert (third.step, third.loss, third.grad_norm, third.learning_rate) == (3, math.inf, -math.inf, None)
    assert trl_logs.parse_log is parse_log


def test_a_run_that_was_killed_has_the_steps_until_then_and_no_times() -> None:
    assert [(record.step, record.seconds) for record in parse_log(PRINTED.split("fault")[0])] == [(1, None)]


@pytest.mark.parametrize(
    "line",
    ["{'loss': }", "{'loss': '1.0'", "{'loss': open('x')}", "{'loss': [1]}", "{'eval': 1.0}", "{'loss': 'much'}", ""],
)
def test_what_is_no_log_line_gives_no_record(line: str) -> None:
    assert parse_log(line) == ()


@given(st.text())
def test_no_output_breaks_the_parser(output: str) -> None:
    assert all(record.step > 0 for record in parse_log(output))


def test_tokens_are_those_that_the_log_counts(tmp_path: Path) -> None:
    history = [{"step": 1, "loss": 2.0, "num_tokens": 451.0}, {"step": 2, "loss": 1.0, "num_input_tokens_seen": 900}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert [record.tokens for record in read_log(tmp_path)] == [451.0, 900.0]
