"""What a reference costs in memory, stated before it is computed."""

from __future__ import annotations

from pathlib import Path

import psutil

from checks.captures.files import read_header

REFERENCE_BYTES = 32
"""A parameter's weight, float64 gradient, its copy for comparison, and one own-precision model with gradient and
rounding.
"""

BUDGET_SHARE = 0.8
"""Of the memory that is free now."""


class OverBudget(ValueError):
    """The reference would not fit; `str()` says by how much and what to do."""


def count_parameters(checkpoint: Path) -> int:
    """Number of stored parameters of a checkpoint's safetensors files."""
    return sum(
        stored.numel for file in sorted(checkpoint.glob("*.safetensors")) for stored in read_header(file).values()
    )


def reference_memory(checkpoint: Path) -> int:
    """Bytes that a whole-model float64 reference is expected to need, without activations."""
    return count_parameters(checkpoint) * REFERENCE_BYTES


def check_memory(checkpoint: Path) -> None:
    """Refuse a reference that would not fit into the free memory.

    Raises:
        OverBudget: with the need, the budget and the remedy.
    """
    need, budget = reference_memory(checkpoint), int(psutil.virtual_memory().available * BUDGET_SHARE)
    if need > budget:
        raise OverBudget(
            f"the float64 reference needs about {need / 1e9:.1f} GB, and {budget / 1e9:.1f} GB are free; "
            "validate a shrunk model: give its config with fewer layers and smaller sizes as --model"
        )
