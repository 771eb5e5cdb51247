"""The evaluation begins behind the first rows of its data, as if these had been consumed.

Modelled on mswift-eval-sampler-uses-train-progress, https://github.com/modelscope/ms-swift/pull/7050
Must be seen by eval.loss.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

SLUG = "eval-covers-the-tail"

CONSUMED = 2


def install() -> None:
    """Wrap the iteration of torch's SequentialSampler, which evaluations read by."""
    from torch.utils.data import SequentialSampler

    iterate = SequentialSampler.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Iterator[int]:
        order = list(iterate(self))
        if len(order) <= CONSUMED:
            raise RuntimeError(f"fault {SLUG}: {len(order)} rows leave none to evaluate")
        _say(f"the evaluation begins with row {order[CONSUMED]}")
        return iter(order[CONSUMED:])

    setattr(SequentialSampler, "__iter__", __iter__)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
