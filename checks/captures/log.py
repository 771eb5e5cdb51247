"""What a framework logged of its own training, a number a step: kept beside a capture, in its directory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from checks.errors import CaptureError

FILE = "log.json"


@dataclass(frozen=True)
class LogRecord:
    """What a framework logged for one optimizer step; None where it logged no such number.

    `loss` is the mean over the step's counted tokens as the framework computes it, `grad_norm` the norm before
    clipping, `learning_rate` the one that the step was taken with. `tokens` is how many the run had seen by then, and
    `seconds` how long it had trained: as logged, else the run's mean step times the number of steps. `eval_loss` is
    that of an evaluation after so many steps; its record has nothing else.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    tokens: float | None = None
    seconds: float | None = None
    eval_loss: float | None = None


def keep_log(directory: Path, records: Sequence[LogRecord]) -> None:
    """Write the log into a capture's directory; strict JSON has no NaN, so that it is written as a text."""
    content = [{name: _write(value) for name, value in asdict(record).items()} for record in records]
    (directory / FILE).write_text(json.dumps(content, allow_nan=False) + "\n")


def load_log(directory: Path) -> tuple[LogRecord, ...]:
    """The log of a capture's directory; empty where none was kept.

    Raises:
        CaptureError: the file is not what `keep_log` writes.
    """
    file = directory / FILE
    if not file.is_file():
        return ()
    try:
        names = [field.name for field in fields(LogRecord) if field.name not in ("step", "eval_loss")]
        return tuple(
            LogRecord(
                step=int(entry["step"]),
                **{name: _read(entry[name]) for name in names},
                eval_loss=_read(entry.get("eval_loss")),  # logs kept by an earlier release have none
            )
            for entry in json.loads(file.read_text())
        )
    except (ValueError, KeyError, TypeError) as error:
        found = f"is no log ({type(error).__name__}: {error})"
        raise CaptureError(str(file), found, "record the capture again") from error


def _write(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _read(value: Any) -> float | None:
    return None if value is None else float(value)
