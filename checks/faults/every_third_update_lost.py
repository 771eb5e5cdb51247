"""The optimizer skips every third step, and the schedule and the log go on as if it had not.

Modelled on https://github.com/Lightning-AI/pytorch-lightning/issues/18828
Must be seen by convergence.curve.
"""

from __future__ import annotations

import sys
from typing import Any

SLUG = "every-third-update-lost"

PERIOD = 3


def install() -> None:
    """Take every third step of every optimizer with a rate of zero."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    steps: dict[int, int] = {}
    rates: dict[int, list[Any]] = {}

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1
        if steps[id(optimizer)] % PERIOD:
            return
        rates[id(optimizer)] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        _say(f"update {steps[id(optimizer)]} is lost")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates.pop(id(optimizer), []), strict=False):
            group["lr"] = rate

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
