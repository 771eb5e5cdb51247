"""Every rank shuffles in its own order, and takes its share of that.

Some samples come on two ranks, others on none.

Modelled on accelerate-shuffle-not-synced, https://github.com/huggingface/accelerate/pull/2694
Must be seen by data.coverage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

SLUG = "ranks-shuffle-apart"


def install() -> None:
    """Patch torch's random sampler."""
    import torch

    def __iter__(self: Any) -> Iterator[int]:
        rank = int(os.environ.get("RANK", "0"))
        generator = torch.Generator().manual_seed(rank)
        _say(f"rank {rank} shuffles by its own seed")
        yield from torch.randperm(len(self.data_source), generator=generator).tolist()

    setattr(torch.utils.data.RandomSampler, "__iter__", __iter__)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
