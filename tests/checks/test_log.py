"""A framework's log beside its capture."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from checks.captures.log import FILE, LogRecord, keep_log, load_log
from checks.errors import CaptureError
from checks.material import Material


def test_a_log_is_read_as_it_was_kept_numbers_that_are_none_too(tmp_path: Path) -> None:
    records = (LogRecord(1, 2.5, None, 1e-3, tokens=64.0, seconds=0.5), LogRecord(2, math.inf, 3.0, 0.0))
    keep_log(tmp_path, records)
    assert load_log(tmp_path) == records
    keep_log(tmp_path, (LogRecord(1, math.nan, None, None),))
    (only,) = load_log(tmp_path)
    assert only.loss is not None
    assert math.isnan(only.loss)
    assert "NaN" not in (tmp_path / FILE).read_text()


def test_a_capture_without_a_log_has_an_empty_one(tmp_path: Path) -> None:
    assert load_log(tmp_path) == ()


@pytest.mark.parametrize("content", ["{}{", '[{"step": 1}]', '[{"step": "x"}]', "[1]"])
def test_another_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(CaptureError, match=r"log\.json.*is no log"):
        load_log(tmp_path)


def test_a_recorded_run_keeps_what_the_trainer_logged(healthy: Material) -> None:
    assert healthy.capture is not None
    log = healthy.capture.log
    assert [record.step for record in log] == [1, 2, 3]
    assert [record.learning_rate for record in log] == [1e-3, 1e-3, 1e-3]
    assert all(record.loss is not None and 4.0 < record.loss < 8.0 for record in log)
