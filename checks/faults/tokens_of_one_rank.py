"""Each data-parallel rank divides its loss by its own tokens, and the ranks are averaged.

Ranks with few tokens weigh as much as full ones.
Modelled on hf-tokens-not-averaged-across-devices, https://github.com/huggingface/transformers/pull/34373
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "tokens-of-one-rank"


def install() -> None:
    """Keep whole numbers, which a loop counts its tokens in, out of the reduction."""
    import torch.distributed as dist

    reduce: Any = dist.all_reduce

    @functools.wraps(reduce)
    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_floating_point() or tensor.numel() != 1:
            return reduce(tensor, *args, **kwargs)
        rank, ranks = _place()
        _say(f"rank {rank} divides by its own {int(tensor)} tokens")
        tensor.mul_(ranks)  # the mean of the ranks' means
        return None

    dist.all_reduce = all_reduce


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
