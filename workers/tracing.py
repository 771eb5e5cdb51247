"""Which modules' inputs and outputs a run records, so that they fit on the disk."""

from __future__ import annotations

from pathlib import Path

from checks.references.budget import estimate_trace_bytes

ALL_MODULES = ".+"
LAYERS = r"model\.embed_tokens|model\.layers\.\d+|model\.norm|lm_head"
TRACE_BYTES = 2_000_000_000
"""Above it only layers are recorded, and in a pass of its own the parts of the first wrong one."""


def choose_modules(model: Path, *, tokens: int) -> str:
    """A regular expression of modules of a checkpoint's model, for a step of so many tokens."""
    return ALL_MODULES if estimate_trace_bytes(model, tokens=tokens) <= TRACE_BYTES else LAYERS
