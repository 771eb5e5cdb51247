"""Reading AutoModel's own log: `training.jsonl` in its checkpoint directory, an object a step, counted from 0."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from checks.captures.log import LogRecord
from checks.errors import CaptureError

LOG_FILE = "training.jsonl"


def read_log(output: Path) -> tuple[LogRecord, ...]:
    """Return a record for each step of a run's output directory; none where it ended before it wrote any.

    The recipe writes a hundred records at once, and the rest at its end. Its `lr` is written after the scheduler has
    stepped, so that it is the rate of the next step; that of the first is not logged.

    Raises:
        CaptureError: a line that is no record.
    """
    file = output / LOG_FILE
    if not file.is_file():
        return ()
    try:
        entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
        rates = [None, *(float(before["lr"]) for before, _ in pairwise(entries))]
        return tuple(
            LogRecord(int(entry["step"]) + 1, float(entry["loss"]), float(entry["grad_norm"]), rate)
            for entry, rate in zip(entries, rates, strict=True)
        )
    except (ValueError, KeyError, TypeError) as error:
        found = f"is no log of AutoModel ({type(error).__name__}: {error})"
        raise CaptureError(str(file), found, "run the training again") from None
