"""Reading ms-swift's log: logging.jsonl, a line each logged step, `global_step/max_steps` in words such as "1/2"."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import CaptureError
from workers.frameworks.transformers.logs import read_entries

LOG_FILE = "logging.jsonl"
STEP = "global_step/max_steps"


def read_log(output: Path) -> tuple[LogRecord, ...]:
    """Return a record for each logged step, and each evaluation, of a run's output directory, in the order of steps.

    A run that ended sums itself up in a last line whose `log_history` is exact; the lines of each step are rounded to
    nine digits. Raises CaptureError when the file is no log.

    Nothing where there is no file: the run broke off before its first step, and run.completes says why.
    """
    file = output / LOG_FILE
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return tuple(read_entries(_find_entries(lines)))
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = f"is no log of ms-swift ({type(error).__name__}: {error})"
        raise CaptureError(str(file), found, "run the training again") from None


def _find_entries(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    if lines and "log_history" in lines[-1]:
        yield from ((int(entry["step"]), entry) for entry in lines[-1]["log_history"])
        return
    yield from ((int(line[STEP].split("/")[0]), line) for line in lines if STEP in line)
