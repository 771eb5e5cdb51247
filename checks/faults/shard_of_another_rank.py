"""Rank 1 starts with the slice of a weight that belongs to rank 0.

The shapes fit, so that nothing complains.
Modelled on automodel-transposed-shard-placement, https://github.com/NVIDIA-NeMo/Automodel/pull/1691
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "shard-of-another-rank"


def install() -> None:
    """Exchange the shard when the optimizer is made, after the model has been divided."""
    import torch

    cls = torch.optim.Optimizer
    construct = cls.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if _place()[1] > 1:
            _exchange(self)

    setattr(cls, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _exchange(optimizer: Any) -> None:
    rank, ranks = _place()
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if _is_divided_by_rows(parameter) and parameter.dim() == 2 and not parameter.shape[0] % ranks:
            whole = parameter.detach().full_tensor()  # every rank takes part
            if rank == 1:
                own = parameter.detach().to_local()
                own.copy_(whole[: own.shape[0]])
                _say(f"rank 1 holds rank 0's slice of a weight of shape {tuple(parameter.shape)}")
            return
    raise RuntimeError(f"fault {SLUG}: the optimizer holds no matrix that is divided by its rows")


def _is_divided_by_rows(parameter: Any) -> bool:
    """Whether ranks hold different rows; over one rank, as of an axis that is not divided, a shard is the whole."""
    placements = enumerate(getattr(parameter, "placements", ()))
    return any(each.is_shard(0) and parameter.device_mesh.size(axis) > 1 for axis, each in placements)


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
