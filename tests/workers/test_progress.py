"""The progress line: one line a phase in a log, a redrawn line on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from workers.report import ProgressLine
from workers.request import Progress

STEPS = (
    Progress("run: run", "transformers, 3 steps", 0.0, 0.0),
    Progress("run: run", "step 1 of 3 [loss]", None, 1.0),
    Progress("reference", "float64 reference", 0.8, 12.34),
)


def test_a_log_gets_one_line_a_phase() -> None:
    stream = io.StringIO()
    with ProgressLine(Console(file=stream, width=80)) as line:
        for step in STEPS:
            line.show(step)
    assert stream.getvalue() == ("  0.00 s  run: run: transformers, 3 steps\n  12.3 s  reference: float64 reference\n")


def test_a_terminal_sees_what_runs_now_and_keeps_nothing() -> None:
    stream = io.StringIO()
    with ProgressLine(Console(file=stream, width=80, force_terminal=True)) as line:
        for step in STEPS:
            line.show(step)
            line._live.refresh()  # type: ignore[union-attr]
    shown = stream.getvalue()
    assert "step 1 of 3 [loss]" in shown
    assert "reference: float64 reference" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the line is erased at the end


def test_a_frameworks_escapes_do_not_reach_the_terminal() -> None:
    stream = io.StringIO()
    with ProgressLine(Console(file=stream, width=80)) as line:
        line.show(Progress("run", "\x1b[31mred\x07", None, 0.0))
    assert stream.getvalue() == "  0.00 s  run: \ufffd[31mred\ufffd\n"
