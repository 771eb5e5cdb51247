"""The loss scale stays what it is, also after an infinity was found in the gradients.

The second attempt at an update overflows and is skipped; the next ones are scaled as much as it was.

Modelled on a scaler that is not updated, https://github.com/Azure/MS-AMP/pull/45
Must be seen by step.scaler.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "scale-never-updated"

OVERFLOWS = 2
"""number of the attempt whose gradients overflow"""


def install() -> None:
    """Make an attempt overflow, and keep the scaler's scale from being changed."""
    import torch

    cls = torch.amp.GradScaler
    unscale = cls.unscale_
    attempts = 0

    @functools.wraps(unscale)
    def unscale_(self: Any, optimizer: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == OVERFLOWS:
            _overflow(optimizer)
        unscale(self, optimizer)

    def keep(scale: Any, tracker: Any, *args: Any) -> Any:
        _say(f"the scale stays {float(scale):g}")
        return scale

    cls.unscale_ = unscale_  # type: ignore[method-assign]
    setattr(torch, "_amp_update_scale_", keep)  # noqa: B010 (a function of a typed module)


def _overflow(optimizer: Any) -> None:
    """Make one number of one gradient infinite, as a sum beyond float16 would be."""
    parameter = next(p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    parameter.grad.view(-1)[0] = float("inf")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
