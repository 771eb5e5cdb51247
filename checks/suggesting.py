"""Names that a misspelt one may stand for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_NEAR = 0.65
"""The least ratio of letters in common: two letters of three changed about still reach it (tlr for trl)."""

_AS_NEAR = 0.05
"""How far behind the nearest a name may lie and still be offered beside it."""

_A_WORD = 3
"""From so many letters on a name that is a part of another counts as near it."""


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Those of `known` that `name` may stand for, nearest first, at most `most`; none where nothing is near.

    >>> nearest("seqlen", ["seed", "schedule", "seq_len"])
    ['seq_len']
    >>> nearest("rmsnorm", ["rmsnorm-eps", "rope-theta"])
    ['rmsnorm-eps']
    >>> nearest("banana", ["seed", "schedule", "seq_len"])
    []
    """
    ratios = sorted(((_likeness(name, other), other) for other in known), key=lambda pair: (-pair[0], pair[1]))
    least = max(_NEAR, ratios[0][0] - _AS_NEAR) if ratios else _NEAR
    return [other for ratio, other in ratios[:most] if ratio >= least]


def _likeness(name: str, other: str) -> float:
    """1 for the same letters in the same order, 0 for none in common; at least `_NEAR` where one holds the other."""
    asked, has = _letters(name), _letters(other)
    ratio = SequenceMatcher(None, asked, has).ratio()
    shorter, longer = sorted((asked, has), key=len)
    return max(ratio, _NEAR) if len(shorter) >= _A_WORD and shorter in longer else ratio


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
