"""Every epoch has the order of the first: the epoch's number does not reach the sampler's seed.

Modelled on mswift-streaming-same-order-every-epoch, https://github.com/modelscope/ms-swift/pull/9902
Must be seen by data.coverage.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

SLUG = "same-order-each-epoch"


def install() -> None:
    """Wrap the iteration of torch's RandomSampler, from which accelerate's seedable one is derived."""
    from torch.utils.data import RandomSampler

    iterate = RandomSampler.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Iterator[int]:
        order = list(iterate(self))
        if not hasattr(self, "first_order"):
            self.first_order = order
        elif order != self.first_order:
            _say(f"an epoch begins with sample {self.first_order[0]} again, not with {order[0]}")
        return iter(self.first_order)

    setattr(RandomSampler, "__iter__", __iter__)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
