"""Each data-parallel rank keeps the gradients of its own rows.

It is what a no_sync() that is never left does; the replicas part with the first update.
Modelled on automodel-hsdp-moe-replicas-unsynced, https://github.com/NVIDIA-NeMo/Automodel/pull/3135
Must be seen by parallel.replicas.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "gradients-not-reduced"


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
    import torch

    _say(f"the gradients of rank {_place()[0]} are not reduced")
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
