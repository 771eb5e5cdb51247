"""Reading the Trainer's own log: trainer_state.json, or what it printed where the run did not live to write that."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import CaptureError

STATE_FILE = "trainer_state.json"

TOKEN_FIELDS = ("num_tokens", "num_input_tokens_seen")
"""TRL's count of tokens seen, and the Trainer's own where it was asked to count."""

LONGEST_LINE = 10_000
"""Characters: the Trainer's lines have a few hundred, and a longer one is somebody else's."""


def read_log(output: Path) -> tuple[LogRecord, ...]:
    """Return a record for each logged step, and each evaluation, of a run's output directory, in the order of steps.

    The summary that the Trainer appends has no `loss` (it says `train_loss`) and gives only the run's duration. NaN and
    infinity are kept as they are. Raises CaptureError when the file is missing or is no log.
    """
    file = output / STATE_FILE
    try:
        history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
        return tuple(read_entries((int(entry["step"]), entry) for entry in history))
    except FileNotFoundError:
        raise CaptureError(str(file), "is missing", "look in the run's log for why training did not end") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"is no Trainer log ({type(error).__name__}: {error})"
        raise CaptureError(str(file), found, "run the training again") from None


def parse_log(output: str) -> tuple[LogRecord, ...]:
    """Return a record for each step that a run printed: `{'loss': '6.874', 'grad_norm': '11.26', …}`, a line each.

    The adapters set `logging_steps=1`, so that the n-th printed loss is that of step n. The Trainer prints four
    digits: `read_log` is exact and comes first wherever its file exists. Other output between the lines is passed over.
    """
    entries = []
    steps = 0
    for line in output.splitlines():
        entry = _read_line(line)
        if entry is not None:
            steps += "loss" in entry
            entries.append((steps, entry))
    return tuple(read_entries(entries))


def _read_line(line: str) -> Mapping[str, Any] | None:
    """A printed dict whose values are numbers, or texts of numbers; None for any other line."""
    start = line.find("{'")
    if start < 0 or len(line) > LONGEST_LINE or not line.rstrip().endswith("}"):
        return None
    # repr writes nan and inf as names, which are no literals
    text = line[start:].rstrip()
    for name in ("nan", "inf"):
        text = text.replace(f": {name}", f": '{name}'").replace(f": -{name}", f": '-{name}'")
    try:
        entry = ast.literal_eval(text)
        return {key: float(value) for key, value in entry.items()} if "loss" in entry or "train_loss" in entry else None
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
        return None


def read_entries(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[LogRecord]:
    """The records of `log_history`'s entries, each with the step that it was logged after."""
    entries = list(entries)
    duration = next((_read_number(entry, "train_runtime") for _, entry in entries if "train_runtime" in entry), None)
    last = max((step for step, entry in entries if "loss" in entry), default=0)
    for step, entry in entries:
        if "loss" in entry:
            yield LogRecord(
                step=step,
                loss=_read_number(entry, "loss"),
                grad_norm=_read_number(entry, "grad_norm"),
                learning_rate=_read_number(entry, "learning_rate"),
                tokens=next((_read_number(entry, name) for name in TOKEN_FIELDS if entry.get(name) is not None), None),
                seconds=duration * step / last if duration is not None and last else None,
            )
        elif "eval_loss" in entry:
            yield LogRecord(step, None, None, None, eval_loss=_read_number(entry, "eval_loss"))


def _read_number(entry: Mapping[str, Any], name: str) -> float | None:
    return None if entry.get(name) is None else float(entry[name])
