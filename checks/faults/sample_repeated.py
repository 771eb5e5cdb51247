"""Each epoch trains on its first sample twice, and on its second not at all.

Modelled on hf-resume-order-wrong-after-first-epoch, https://github.com/huggingface/transformers/pull/40691
Must be seen by data.coverage.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

SLUG = "sample-repeated"


def install() -> None:
    """Wrap the iteration of torch's RandomSampler, from which accelerate's seedable one is derived."""
    from torch.utils.data import RandomSampler

    iterate = RandomSampler.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Iterator[int]:
        order = list(iterate(self))
        if len(order) < 2:
            raise RuntimeError(f"fault {SLUG}: an epoch of {len(order)} samples has none to leave out")
        _say(f"sample {order[0]} comes twice, sample {order[1]} not")
        return iter([order[0], *order[:1], *order[2:]])

    setattr(RandomSampler, "__iter__", __iter__)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
