"""A log's last traceback becomes one line with its innermost frame."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.last_error import LOG_TAIL_BYTES, read_last_error

TRACEBACK = """Traceback (most recent call last):
  File "/env/lib/train.py", line 12, in <module>
    main()
  File "/env/lib/transformers/trainer.py", line 2103, in compute_loss
    labels = inputs["labels"]
             ~~~~~~^^^^^^^^^^
KeyError: 'labels'
"""
LINE = "KeyError: 'labels' (trainer.py:2103, in compute_loss)"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


def test_the_last_line_and_the_innermost_frame_are_named(log: Path) -> None:
    log.write_text("step 1\n" + TRACEBACK)
    assert read_last_error(log) == LINE


def test_a_log_without_traceback_has_no_error(log: Path) -> None:
    log.write_text("step 1\nKeyError: 'labels'\n")
    assert read_last_error(log) is None


def test_an_empty_log_has_no_error(log: Path) -> None:
    log.write_text("")
    assert read_last_error(log) is None


def test_of_chained_tracebacks_the_last_counts(log: Path) -> None:
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    log.write_text(TRACEBACK.replace("KeyError", "OSError") + handling + TRACEBACK)
    assert read_last_error(log) == LINE


def test_the_prefix_of_a_rank_is_taken_off(log: Path) -> None:
    log.write_text("".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()))
    assert read_last_error(log) == LINE


def test_the_worker_is_blamed_and_not_its_launcher(log: Path) -> None:
    elastic = TRACEBACK.replace(
        "KeyError: 'labels'", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    )
    log.write_text(TRACEBACK + elastic)
    assert read_last_error(log) == LINE


def test_a_traceback_that_breaks_off_gives_way_to_the_one_before(log: Path) -> None:
    log.write_text(TRACEBACK + 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n')
    assert read_last_error(log) == LINE


def test_bytes_that_are_no_text_do_not_hide_the_error(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\x00" * 10 + b"\n" + TRACEBACK.encode())
    assert read_last_error(log) == LINE


def test_only_the_tail_of_a_long_log_is_read(log: Path) -> None:
    log.write_text(TRACEBACK + "x" * (LOG_TAIL_BYTES + 1))
    assert read_last_error(log) is None
    log.write_text("x\n" * LOG_TAIL_BYTES + TRACEBACK)
    assert read_last_error(log) == LINE
