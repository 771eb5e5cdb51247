"""The gradients of data-parallel ranks are divided by the number of ranks twice.

With two ranks every one of them is half of what it should be.
Modelled on ds-expert-grad-scale, https://github.com/deepspeedai/DeepSpeed/pull/6546
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "gradients-averaged-twice"


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

    ranks = _place()[1]
    _say(f"gradients are divided by {ranks} twice")
    work: Any = dist.all_reduce(bucket.buffer().div_(ranks**2), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
