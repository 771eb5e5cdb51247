"""The learning rate is the scheduler's default of 0.001, whatever was asked.

A run that asks for 0.001 hides it.

Modelled on ds-warmuplr-ignores-optimizer-lr, https://github.com/deepspeedai/DeepSpeed/pull/7360
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "rate-of-scheduler"

RATE = 0.001


def install() -> None:
    """Change the groups of every optimizer."""
    _after_creating(_change)


def _change(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        _say(f"the rate is {RATE:g}, not {group['lr']:g}")
        group["lr"] = RATE


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
