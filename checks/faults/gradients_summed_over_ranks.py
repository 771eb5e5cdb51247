"""The gradients of data-parallel ranks are added up and not averaged.

With two ranks every one of them is twice what it should be.
Modelled on automodel-seqcls-dp-overscale, https://github.com/NVIDIA-NeMo/Automodel/issues/3846
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "gradients-summed-over-ranks"


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

    _say(f"gradients are added up over {_place()[1]} ranks")
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
