"""The schedule goes on with a step that was skipped for an infinity in its gradients.

The second attempt at an update overflows, and the learning rate falls as if it had been taken.

Modelled on a scheduler stepped with skipped steps, https://github.com/Lightning-AI/pytorch-lightning/issues/18828
Must be seen by step.scaler.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "schedule-advances-on-skipped-step"

OVERFLOWS = 2
"""number of the attempt whose gradients overflow"""


def install() -> None:
    """Make an attempt overflow, and step every schedule when it is skipped."""
    import torch

    cls = torch.amp.GradScaler
    unscale, update = cls.unscale_, cls.update
    schedules: list[Any] = []
    begin = torch.optim.lr_scheduler.LRScheduler.__init__
    attempts = 0

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        schedules.append(self)

    @functools.wraps(unscale)
    def unscale_(self: Any, optimizer: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == OVERFLOWS:
            _overflow(optimizer)
        unscale(self, optimizer)

    @functools.wraps(update)
    def update_(self: Any, new_scale: Any = None) -> None:
        before = self.get_scale()
        update(self, new_scale)
        if self.get_scale() < before:
            for schedule in schedules:
                schedule.step()
            _say("the schedule goes on with a skipped step")

    setattr(torch.optim.lr_scheduler.LRScheduler, "__init__", __init__)  # noqa: B010 (a method of a typed class)
    cls.unscale_, cls.update = unscale_, update_  # type: ignore[method-assign]


def _overflow(optimizer: Any) -> None:
    """Make one number of one gradient infinite, as a sum beyond float16 would be."""
    parameter = next(p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    parameter.grad.view(-1)[0] = float("inf")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
