"""Gradients are clipped while they are still multiplied by the loss scale.

What the loop asks of `unscale_` is put off until the step: the limit acts on gradients that are too large by the
scale.

Modelled on clipping before the unscaling, https://github.com/Lightning-AI/pytorch-lightning/issues/9599
Must be seen by step.scaler.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "clip-of-scaled-gradients"


def install() -> None:
    """Let `unscale_` act only where the scaler's own step calls it."""
    import torch

    cls = torch.amp.GradScaler
    unscale, step = cls.unscale_, cls.step
    stepping: list[bool] = []

    @functools.wraps(unscale)
    def unscale_(self: Any, optimizer: Any) -> None:
        if stepping:
            unscale(self, optimizer)
        else:
            _say("unscaling waits for the step")

    @functools.wraps(step)
    def step_(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        stepping.append(True)
        try:
            return step(self, optimizer, *args, **kwargs)
        finally:
            stepping.pop()

    cls.unscale_, cls.step = unscale_, step_  # type: ignore[method-assign]


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
