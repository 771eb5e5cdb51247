"""The gradients of rank 1 are left out of the reduction.

All ranks hold the same gradients, to which rank 1's rows have added nothing.
Modelled on automodel-fsdp-unused-params-under-cp, https://github.com/NVIDIA-NeMo/Automodel/pull/3414
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "rank-left-out"


def install() -> None:
    """Give every DistributedDataParallel a reduction of its own."""
    import torch

    _reduce.__annotations__.clear()  # torch refuses those that are not its own classes
    cls = torch.nn.parallel.DistributedDataParallel
    construct = cls.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        self.register_comm_hook(None, _reduce)

    setattr(cls, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _reduce(state: Any, bucket: Any) -> Any:
    import torch.distributed as dist

    rank, ranks = _place()
    if rank == 1:
        bucket.buffer().zero_()
        _say("what rank 1 gives to the reduction is zero")
    work: Any = dist.all_reduce(bucket.buffer().div_(ranks), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
