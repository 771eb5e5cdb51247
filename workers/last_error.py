"""The line of a run's log that says why it ended."""

from __future__ import annotations

import re
from pathlib import Path

LOG_TAIL_BYTES = 1 << 20
"""How far back from its end a log is searched."""

_RANK_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_HEADER = "Traceback (most recent call last):"
_LAUNCHER_ERRORS = ("torch.distributed.elastic.",)
"""What torchrun raises about a worker that failed; the worker's own traceback, above it, says why."""


def read_last_error(log: Path) -> str | None:
    """The last traceback of `log` as one line, "KeyError: 'labels' (trainer.py:2103, in compute_loss)"; else None.

    The place is the innermost frame, its file as below site-packages, else its name alone. Prefixes that launchers put
    before a worker's lines are taken off.
    """
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    lines = [_RANK_PREFIX.sub("", line) for line in text.splitlines()]
    starts = [index for index, line in enumerate(lines) if line.strip() == _HEADER]
    for start in reversed(starts):
        error = _read_traceback(lines[start + 1 :])
        if error is not None and not error.startswith(_LAUNCHER_ERRORS):
            return error
    return None


def _read_traceback(lines: list[str]) -> str | None:
    place = ""
    for line in lines:
        if match := _FRAME.match(line):
            place = f" ({_shorten(match['file'])}:{match['line']}, in {match['function']})"
        elif line and not line[0].isspace():
            return line.strip() + place
    return None


def _shorten(file: str) -> str:
    """`transformers/trainer.py` of an installed package; of another file its name, which tells no path of the host."""
    _, installed, below = file.rpartition("/site-packages/")
    return below if installed else Path(file).name
