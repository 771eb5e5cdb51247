"""Alike tensors among those that are alive, as the entries of `docs/capture-format.md`, "Memory"."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Tuple

from plumbline_capture.live import Block

GROUPS = 24
"""Groups of alike tensors that are kept of a moment: the largest."""


def is_no_number(block: Block) -> bool:
    """Return whether a block holds more than one value: numbers kept of each step are no leak."""
    elements = 1
    for size in block.shape:
        elements *= size
    return elements > 1


def describe_moment(blocks: Sequence[Block]) -> Dict[str, Any]:
    """Return what was alive at a moment: bytes, and groups of alike tensors, the largest first."""
    return {"bytes": sum(block.bytes for block in blocks), "groups": describe_groups(blocks)}


def describe_groups(blocks: Sequence[Block]) -> List[Dict[str, Any]]:
    """Return the largest groups of blocks of one shape, dtype, role and origin; layers of one kind are one origin."""
    groups: Dict[Tuple[Any, ...], List[Block]] = {}
    for block in blocks:
        key = (block.shape, block.dtype, block.role, block.phase, _without_numbers(block.module), block.operation)
        groups.setdefault(key, []).append(block)
    largest = sorted(groups.values(), key=lambda group: -sum(block.bytes for block in group))
    return [
        {
            "bytes": sum(block.bytes for block in group),
            "count": len(group),
            "shape": list(group[0].shape),
            "dtype": group[0].dtype,
            "role": group[0].role,
            "operation": group[0].operation,
            "module": group[0].module,
            "caller": group[0].caller,
            "phase": group[0].phase,
            "step": group[0].step,
            "micro_batch": group[0].micro_batch,
        }
        for group in largest[:GROUPS]
    ]


def _without_numbers(path: Optional[str]) -> Optional[str]:
    return None if path is None else ".".join("*" if part.isdigit() else part for part in path.split("."))


def count_copies(blocks: Sequence[Block], shapes: Sequence[Tuple[int, ...]]) -> Dict[str, Any]:
    """Return how many of these shapes are found among floating blocks, each block used once, and their bytes."""
    available: Dict[Tuple[int, ...], List[Block]] = {}
    for block in blocks:
        if "float" in block.dtype:
            available.setdefault(block.shape, []).append(block)
    matched = []
    for shape, count in Counter(shapes).items():
        matched += sorted(available.get(shape, []), key=lambda block: -block.bytes)[:count]
    groups = describe_groups(matched)
    return {
        "matched": len(matched),
        "of": len(shapes),
        "bytes": sum(block.bytes for block in matched),
        "largest": groups[0] if groups else None,
    }
