"""The table says verdicts in word, shape and colour, with numbers, and explains what did not pass."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from checks.verdict import Measurement, Status
from tests.workers.results import BROKEN, FAILED, PASSED, SKIPPED, UNSURE, make_result, rename
from workers.report.numbers import format_limit, format_measurement, format_number, format_seconds, pick_largest
from workers.report.table import SYMBOLS, print_result
from workers.request import ValidationResult


def _print(result: ValidationResult, *, width: int = 80, terminal: bool = False) -> str:
    stream = io.StringIO()
    print_result(result, console=Console(file=stream, width=width, force_terminal=terminal))
    return stream.getvalue()


def _squeeze(text: str) -> str:
    """Without the frame and the line breaks that the width makes."""
    return " ".join("".join(" " if ch in "│┃\n" else ch for ch in text).split())


def test_each_verdict_has_its_word_and_its_shape() -> None:
    text = _print(make_result())
    for shown in ("● pass", "▲ fail", "◆ inconclusive", "■ error", "○ skipped"):
        assert shown in text
    assert len(set(SYMBOLS.values())) == len(Status)


def test_colour_comes_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[36m● pass" in _print(make_result(), terminal=True)
    assert "\x1b[1;31m▲ fail" in _print(make_result(), terminal=True)
    assert "\x1b" not in _print(make_result())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in _print(make_result(), terminal=True)


@pytest.mark.parametrize("width", [80, 60, 140])
def test_no_line_is_wider_than_the_terminal_and_no_name_is_cut(width: int) -> None:
    text = _print(make_result(), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for verdict in make_result().verdicts:
        assert f" {verdict.check} " in text


def test_a_row_shows_the_worst_number_its_threshold_and_the_weakest_block() -> None:
    text = _squeeze(_print(make_result(PASSED), width=200))
    assert "step.gradients ● pass 3.00e-06 / 5.00e-06 4.20e-05 in q_proj transformers.Qwen3ForCausalLM" in text


def test_what_did_not_pass_is_explained_in_full() -> None:
    text = _print(make_result(), width=200)
    assert f"  {FAILED.sentence}\n  first wrong: num_items_in_batch\n  pattern: objective-scale\n" in text
    assert f"◆ inconclusive step.update\n  {UNSURE.sentence}\n" in text
    assert f"○ skipped data.packing\n  {SKIPPED.sentence}\n" in text
    assert PASSED.sentence not in text
    assert "■ error step.loss\n  the judge broke" in text


def test_brackets_in_a_sentence_are_not_taken_for_markup() -> None:
    assert "[of both micro-batches]" in _print(make_result(FAILED), width=200)


def test_the_dearest_phase_the_total_and_the_warnings_are_said() -> None:
    text = _print(make_result())
    assert "total 20.8 s; dearest phase: reference, 12.5 s" in text
    assert "note weights are random" in text
    assert "1 pass, 1 fail, 1 inconclusive, 1 error, 1 skipped" in text


def test_verdicts_are_counted_by_their_word() -> None:
    text = _print(make_result(PASSED, rename(PASSED, "step.update"), SKIPPED))
    assert "2 pass, 1 skipped" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (113.0, "113"),
        (1.000123e-5, "1.00e-05"),
        (0.01, "0.01"),
        (0.00999, "9.99e-03"),
        (3.14159, "3.14"),
        (-2.5, "-2.5"),
        (1e7, "1.00e+07"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.417, "0.42 s"), (12.34, "12.3 s"), (185.2, "3 min 05 s")])
def test_times_are_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def _measure(value: float, threshold: float, *, holds: bool = True) -> Measurement:
    return Measurement(f"{value}", value=value, threshold=threshold, holds=holds)


def test_the_largest_is_what_is_nearest_to_its_threshold() -> None:
    near, far = _measure(2e-9, 3e-9), _measure(1e-3, 1.0)
    assert pick_largest([far, near]) is near
    assert pick_largest([]) is None


def test_what_does_not_hold_goes_before_what_does() -> None:
    wrong, right = _measure(0.1, 1.0, holds=False), _measure(0.9, 1.0)
    assert pick_largest([right, wrong]) is wrong


def test_nan_and_a_crossed_threshold_of_zero_are_the_largest() -> None:
    assert pick_largest([_measure(5.0, 1.0), _measure(math.nan, 1.0)]).name == "nan"  # type: ignore[union-attr]
    assert pick_largest([_measure(5.0, 1.0), _measure(1.0, 0.0)]).name == "1.0"  # type: ignore[union-attr]
    assert pick_largest([_measure(0.5, 1.0), _measure(0.0, 0.0)]).name == "0.5"  # type: ignore[union-attr]
    assert pick_largest([_measure(-5.0, 1.0), _measure(2.0, 1.0)]).name == "-5.0"  # type: ignore[union-attr]


def test_a_unit_is_named_where_it_is_not_the_usual_one() -> None:
    assert format_measurement(FAILED.measurements[1]) == "113 / 112 tokens"
    assert format_measurement(PASSED.measurements[0]) == "2.00e-07 / 4.00e-06"
    assert format_measurement(None) == "–"


def test_the_weakest_block_gives_the_detection_limit() -> None:
    assert format_limit(PASSED.detection_limits) == "4.20e-05 in q_proj"
    assert format_limit({"a": 1.0, "b": math.nan}) == "nan in b"
    assert format_limit({}) == "–"


def test_the_escape_of_a_log_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in _print(make_result(BROKEN), terminal=False)
