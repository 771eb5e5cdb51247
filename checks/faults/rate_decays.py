"""A learning rate that should be constant decays linearly over a hundred steps.

The first step has the asked rate.

Modelled on verl-megatron-lr-default, https://github.com/volcengine/verl/pull/2303
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "rate-decays"

STEPS = 100


def install() -> None:
    """Change every `LambdaLR`, which all of transformers' schedules with a formula are."""
    import torch

    begin = torch.optim.lr_scheduler.LambdaLR.__init__

    @functools.wraps(begin)
    def __init__(self: Any, optimizer: Any, lr_lambda: Any, *args: Any, **kwargs: Any) -> None:
        given = lr_lambda if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * len(optimizer.param_groups)
        begin(self, optimizer, [_decay(each) for each in given], *args, **kwargs)
        _say(f"the rate decays over {STEPS} steps")

    setattr(torch.optim.lr_scheduler.LambdaLR, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _decay(multiplier: Callable[[int], float]) -> Callable[[int], float]:
    return lambda step: multiplier(step) * (1.0 - step / STEPS)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
