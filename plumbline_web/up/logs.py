"""The files that take the output of services, kept at a bounded size."""

from __future__ import annotations

import shutil
from pathlib import Path

LARGEST_LOG_BYTES = 10 * 2**20
"""Ten megabytes and as much of the piece before: weeks of a service that has little to say."""

TAIL_BYTES = 16_384


def read_last_lines(log: Path, *, since: int, count: int) -> list[str]:
    """The last non-empty lines of a log that stand after `since` bytes; none where there is no log."""
    if not log.exists():
        return []
    size = log.stat().st_size
    with log.open("rb") as stream:
        stream.seek(max(since if since <= size else 0, size - TAIL_BYTES))  # it is emptied when it is rotated
        lines = stream.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-count:]


def rotate(log: Path) -> None:
    """Keep one older piece beside a log that has become too large.

    Copied and emptied, not renamed: the service goes on to write to the file that it has open, and opened to append.
    A line written between the two is lost.
    """
    if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        with log.open("r+b") as stream:
            stream.truncate(0)
