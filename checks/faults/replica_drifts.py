"""Rank 1 does not take the update of one norm weight.

From then on the ranks' models differ.
Modelled on automodel-tp-replicas-drift, https://github.com/NVIDIA-NeMo/Automodel/pull/3822
Must be seen by parallel.replicas.
"""

from __future__ import annotations

import os
import sys
from typing import Any

SLUG = "replica-drifts"


def install() -> None:
    """Take the gradient of the last vector of the optimizer away before each of rank 1's updates."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    if _place()[0] == 1:
        register_optimizer_step_pre_hook(_skip)


def _skip(optimizer: Any, args: Any, kwargs: Any) -> None:
    vectors = [p for group in optimizer.param_groups for p in group["params"] if p.dim() == 1 and p.grad is not None]
    if not vectors:
        raise RuntimeError(f"fault {SLUG}: the optimizer has no vector with a gradient")
    vectors[-1].grad.zero_()
    _say(f"rank 1 does not update a weight of {vectors[-1].numel()} elements")


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
