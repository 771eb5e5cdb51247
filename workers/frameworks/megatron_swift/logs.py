"""Reading Megatron-SWIFT's log: logging.jsonl, a line each logged step, `iteration` in words such as "1/2"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import CaptureError

LOG_FILE = "logging.jsonl"


def read_log(output: Path) -> tuple[LogRecord, ...]:
    """Return a record for each logged step of a run's output directory, in the order of steps.

    Megatron-SWIFT logs the learning rate after its schedule has moved on: a line's is that of the next step. The last
    line sums the run up and has no loss. Raises CaptureError when the file is no log.

    Nothing where there is no file: the run broke off before its first step, and run.completes says why.
    """
    file = output / LOG_FILE
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return tuple(_read([line for line in lines if "loss" in line and "iteration" in line]))
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"is no log of Megatron-SWIFT ({type(error).__name__}: {error})"
        raise CaptureError(str(file), found, "run the training again") from None


def _read(lines: list[dict[str, Any]]) -> Iterator[LogRecord]:
    rate: float | None = None
    for line in lines:
        step = int(str(line["iteration"]).split("/")[0])
        norm = line.get("grad_norm")
        yield LogRecord(step, float(line["loss"]), None if norm is None else float(norm), rate)
        rate = None if line.get("learning_rate") is None else float(line["learning_rate"])
