"""Every data-parallel rank trains on the rows of rank 0.

The loss falls as it should; the batch is half as large as was asked for.
Modelled on accelerate-shuffle-not-synced, https://github.com/huggingface/accelerate/pull/2694
Must be seen by parallel.data.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "same-rows-on-every-rank"


def install() -> None:
    """Put rank 0's batch in the place of every other before DistributedDataParallel's forward."""
    import torch
    import torch.distributed as dist

    broadcast: Any = dist.broadcast_object_list
    cls: Any = torch.nn.parallel.DistributedDataParallel
    run = cls.forward

    @functools.wraps(run)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = [kwargs]
        broadcast(batch, src=0)
        _say(f"rank {_place()[0]} trains on the rows of rank 0")
        return run(self, *args, **batch[0])

    setattr(cls, "forward", forward)  # noqa: B010 (a method of a typed class)


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
