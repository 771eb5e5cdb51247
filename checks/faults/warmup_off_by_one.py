"""The learning-rate schedule is one step ahead of the optimizer.

Every step uses the rate of the one after it. A constant rate without warm-up hides it.

Modelled on slime-lr-restarts-on-resume, https://github.com/THUDM/slime/pull/1152
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "warmup-off-by-one"


def install() -> None:
    """Shift the argument of every `LambdaLR`, which all of transformers' schedules with a formula are."""
    import torch

    begin = torch.optim.lr_scheduler.LambdaLR.__init__

    @functools.wraps(begin)
    def __init__(self: Any, optimizer: Any, lr_lambda: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(lr_lambda, (list, tuple)):
            shifted: Any = [_shift(each) for each in lr_lambda]
        else:
            shifted = _shift(lr_lambda)
        begin(self, optimizer, shifted, *args, **kwargs)
        _say("the schedule is one step ahead")

    setattr(torch.optim.lr_scheduler.LambdaLR, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _shift(multiplier: Callable[[int], float]) -> Callable[[int], float]:
    return lambda step: multiplier(step + 1)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
