"""Running `workers.jobs.compute` for a job, under its lease."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plumbline_web.jobs.domain import Lease, note_process_group
from plumbline_web.validations.work.heart import Heart
from workers.jobs.compute_signs import PHASE_SIGN
from workers.jobs.computer import Computer, ZygoteDied
from workers.report.as_json import to_plain

TIME_LIMIT_S = 6 * 3600.0
"""A float64 reference of a model that fits the memory is minutes; beyond it, it hangs."""


_COMPUTER = Computer()
"""This process's: a pool process has one job at a time."""


class ComputingFailed(RuntimeError):
    """The computing process ended without an answer; `str()` says how."""


def compute(kind: str, order: object, *, lease: Lease, heart: Heart, directory: Path) -> dict[str, Any] | None:
    """Hand an order to a computing process and return its answer; None where it was cancelled.

    Raises:
        ComputingFailed: it crashed, ran out of memory or time.
    """
    order_file, answer_file = directory / "order.json", directory / "answer.json"
    order_file.write_text(json.dumps(to_plain(order)))

    def on_line(line: str) -> None:
        if line.startswith(PHASE_SIGN):
            heart.say(line.removeprefix(PHASE_SIGN))
        heart.take_line(line)

    try:
        end = _COMPUTER.run(
            kind,
            order=order_file,
            answer=answer_file,
            log=directory / "log",
            scratch=directory,
            time_limit_s=TIME_LIMIT_S,
            on_line=on_line,
            cancelled=heart.cancelled,
            on_start=lambda group: note_process_group(lease, group),
        )
    except ZygoteDied as error:
        raise ComputingFailed(str(error)) from error
    if heart.cancelled():
        return None
    if end.exit_code != 0 or not answer_file.is_file():
        why = end.last_error or f"exit code {end.exit_code}"
        raise ComputingFailed(f"the {kind} process ended with {end.ending.replace('_', ' ')}: {why}")
    answer: dict[str, Any] = json.loads(answer_file.read_text())
    return answer
