"""Reading the Trainer's own log, trainer_state.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.errors import CaptureError
from workers.frameworks.logs import LogRecord

STATE_FILE = "trainer_state.json"


def read_log(output: Path) -> tuple[LogRecord, ...]:
    """Return a record for each logged step of a run's output directory, in the order of steps.

    The summary that the Trainer appends has no `loss` (it says `train_loss`) and is left out. NaN and infinity are
    kept as they are. Raises CaptureError when the file is missing or is no log.
    """
    file = output / STATE_FILE
    try:
        history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
        return tuple(_read_entry(entry) for entry in history if "loss" in entry)
    except FileNotFoundError:
        raise CaptureError(str(file), "is missing", "look in the run's log for why training did not end") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"is no Trainer log ({type(error).__name__}: {error})"
        raise CaptureError(str(file), found, "run the training again") from None


def _read_entry(entry: Mapping[str, Any]) -> LogRecord:
    return LogRecord(
        step=int(entry["step"]),
        loss=_read_number(entry, "loss"),
        grad_norm=_read_number(entry, "grad_norm"),
        learning_rate=_read_number(entry, "learning_rate"),
    )


def _read_number(entry: Mapping[str, Any], name: str) -> float | None:
    return None if entry.get(name) is None else float(entry[name])
