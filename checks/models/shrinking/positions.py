"""Positions and what acts over them: windows shorter than a small context, rope scaling that is in force within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checks.models.shrinking.attention import HEADS, HIDDEN
from checks.models.shrinking.changes import Draft, is_whole

POSITIONS = 512
"""the small model's longest sequence: four times the usual one"""
WINDOW = 32
"""shorter than the usual sequence of 128, so that a wrong window shows"""
POSITION_COUNTS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "local_attention",
    "attention_window_size",
    "sliding_window_size",
    "local_attention_window",
)
SELECTED = ("index_topk",)
"""Keys that sparse attention keeps: fewer than the sequence has."""
SCALINGS = ("rope_parameters", "rope_scaling")
FACTORS = ("short_factor", "long_factor")
"""One a rotary frequency (arXiv:2402.13753)."""
SECTIONS = "mrope_section"
ORIGINAL = "original_max_position_embeddings"


def shrink_positions(draft: Draft) -> None:
    """Cut the context, and with it windows and the positions from which rope scaling counts."""
    before = draft.number(*POSITION_COUNTS) or POSITIONS
    after = min(before, POSITIONS)
    for key in POSITION_COUNTS:
        value = draft.number(key)
        if value is not None:
            draft.put(key, min(value, POSITIONS), "the longest sequence of a small model")
    for key in (*WINDOWS, *SELECTED):
        value = draft.config.get(key)
        if is_whole(value):
            draft.put(key, min(value, WINDOW), "shorter than the sequence, so that it acts")
    for key in SCALINGS:
        value = draft.original.get(key)
        if isinstance(value, Mapping):
            scaled = _scale_all(value, draft, factor=after / before)
            why = "says what is computed" if scaled == value else "scaling that acts within the small context"
            draft.put(key, scaled, why)
    if draft.number(ORIGINAL) is not None:
        draft.put(ORIGINAL, scale_original(int(draft.original[ORIGINAL]), after / before), "as the longest sequence")


def shrink_rotary(draft: Draft) -> None:
    """How many dimensions of a head are rotated, where a config says so by number."""
    for key in ("rotary_dim", "rotary_ndims", "rotary_emb_dim"):
        value = draft.number(key)
        if value is not None:
            heads = draft.number(*HEADS) or 1
            head = draft.number("head_dim") or (draft.number(*HIDDEN) or heads) // heads
            draft.put(key, max(2, 2 * round(draft.head_dim * value / head / 2)), "in the same proportion to a head")


def _scale_all(scaling: Mapping[str, Any], draft: Draft, *, factor: float) -> dict[str, Any]:
    """One kind of scaling, or one for each type of layer."""
    if any(isinstance(value, Mapping) for value in scaling.values()):
        return {
            key: _scale_all(value, draft, factor=factor) if isinstance(value, Mapping) else value
            for key, value in scaling.items()
        }
    found = dict(scaling)
    rotary = _rotary_dim(scaling, draft)
    if is_whole(found.get(ORIGINAL)):
        found[ORIGINAL] = scale_original(int(found[ORIGINAL]), factor)
    for key in FACTORS:
        if isinstance(found.get(key), list) and found[key]:
            found[key] = spread(found[key], rotary // 2)
    if isinstance(found.get(SECTIONS), list) and found[SECTIONS]:
        found[SECTIONS] = share_out(found[SECTIONS], rotary // 2)
    return found


def _rotary_dim(scaling: Mapping[str, Any], draft: Draft) -> int:
    """How many of a small head's dimensions are rotated."""
    latent = draft.config.get("qk_rope_head_dim")
    if is_whole(latent):
        return int(latent)
    partial = scaling.get("partial_rotary_factor", draft.config.get("partial_rotary_factor"))
    head = draft.config.get("head_dim")
    size = int(head) if is_whole(head) else draft.head_dim
    return int(size * partial) if isinstance(partial, float) else size


def scale_original(original: int, factor: float) -> int:
    """The positions before scaling, in the same proportion to the longest sequence; at least 4."""
    return max(4, round(original * factor))


def spread(values: Sequence[float], count: int) -> list[float]:
    """`count` of the values, evenly spaced from the first to the last."""
    if count <= 1 or len(values) <= 1:
        return [values[0]] * count
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def share_out(sections: Sequence[int], total: int) -> list[int]:
    """Sections in the same proportions that add up to `total`: the largest remainders are rounded up."""
    whole = sum(sections)
    exact = [section * total / whole for section in sections]
    found = [int(value) for value in exact]
    by_rest = sorted(range(len(found)), key=lambda i: (found[i] - exact[i], i))
    for i in by_rest[: total - sum(found)]:
        found[i] += 1
    return found
