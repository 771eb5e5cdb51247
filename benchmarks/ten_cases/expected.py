"""What each rule says of each case on a Llama with default initial weights: the earlier measurement to compare with.

At default initialisation attention is almost uniform and every linear map is small, so that faults and noise are both
smaller than in the tiny checkpoint, whose weights are spread so that faults show. A cell that differs is listed by the
benchmark; docs/ten-cases.md says why each does.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.ten_cases.rules import RULES

OK, ALARM, HIT, MISS = "ok", "false alarm", "hit", "miss"
EXACT, WRONG_MODULE, LOSS_ONLY = "hit, exact module", "hit, wrong module", "hit, loss only"

_ROWS: Mapping[str, tuple[str, ...]] = {
    "rerun": (OK,) * 9,
    "sdpa": (OK, OK, OK, OK, OK, ALARM, ALARM, OK, OK),
    "micro-batches": (OK, OK, OK, OK, OK, ALARM, ALARM, OK, OK),
    "bf16": (ALARM, ALARM, OK, OK, OK, ALARM, ALARM, OK, OK),
    "scale-double": (HIT, EXACT, HIT, HIT, MISS, HIT, HIT, MISS, MISS),
    "scale-percent": (WRONG_MODULE, EXACT, MISS, MISS, MISS, HIT, HIT, MISS, MISS),
    "eps": (HIT, EXACT, MISS, MISS, MISS, HIT, HIT, MISS, MISS),
    "weight": (HIT, EXACT, MISS, MISS, MISS, HIT, HIT, MISS, MISS),
    "not-divided": (HIT, HIT, HIT, HIT, LOSS_ONLY, HIT, HIT, HIT, HIT),
    "labels-twice": (HIT, HIT, HIT, HIT, HIT, HIT, HIT, MISS, MISS),
}

EXPECTED: Mapping[str, Mapping[str, str]] = {
    case: dict(zip(RULES, cells, strict=True)) for case, cells in _ROWS.items()
}
"""case → rule → cell; a plain "hit" says nothing of the module"""


def differs(cell: str, expected: str) -> bool:
    """Whether a cell contradicts the expected one; where that is a plain "hit", any hit agrees."""
    return not cell.startswith(HIT) if expected == HIT else cell != expected
