"""Weight decay is twice the asked one.

It acts on the weights that should decay, and on no others.

Modelled on automodel-scheduler-resume-weight-decay-order, https://github.com/NVIDIA-NeMo/Automodel/issues/3882
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "decay-doubled"


def install() -> None:
    """Change the groups of every optimizer."""
    _after_creating(_change)


def _change(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        if group.get("weight_decay"):
            group["weight_decay"] *= 2.0
            _say(f"weight_decay is {group['weight_decay']:g}")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _after_creating(change: Callable[[Any], None]) -> None:
    """Call `change(optimizer)` on every torch optimizer that was made."""
    import torch

    begin = torch.optim.Optimizer.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        change(self)

    setattr(torch.optim.Optimizer, "__init__", __init__)  # noqa: B010 (a method of a typed class)
