"""Each rank clips by the norm of the shards that it holds itself.

Ranks scale their gradients by factors of their own, and the model is no longer one.
Modelled on mcore-grad-norm-undercount-ep-tp, https://github.com/NVIDIA/Megatron-LM/pull/5916
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "norm-of-one-rank"


def install() -> None:
    """Keep single numbers in float64, which a loop adds up its squares in, out of the reduction."""
    import torch
    import torch.distributed as dist

    reduce: Any = dist.all_reduce

    @functools.wraps(reduce)
    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype != torch.float64 or tensor.numel() != 1:
            return reduce(tensor, *args, **kwargs)
        _say(f"rank {_place()[0]} keeps {float(tensor):.4g} of its own")
        return None

    dist.all_reduce = all_reduce


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
