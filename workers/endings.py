"""How a run ends, in a word."""

from __future__ import annotations

from typing import Literal

Ending = Literal["completed", "failed", "timed_out", "out_of_memory", "cancelled"]

OUT_OF_MEMORY_SIGNS = ("MemoryError", "OutOfMemoryError", "out of memory", "can't allocate memory")
"""How Python, torch's allocators and the operating system word it."""


def name_ending(stopped: Ending | None, *, exit_code: int, last_error: str | None) -> Ending:
    """How a run ended: as this side ended it, else as its exit code and its last error say."""
    if stopped is not None:
        return stopped
    if exit_code == 0:
        return "completed"
    if last_error is not None and any(sign in last_error for sign in OUT_OF_MEMORY_SIGNS):
        return "out_of_memory"
    return "failed"
