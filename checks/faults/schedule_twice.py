"""The schedule advances twice a step.

A constant rate hides it.

Modelled on slime-lr-advanced-twice-on-resume, https://github.com/THUDM/slime/issues/1761
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "schedule-twice"


def install() -> None:
    """Patch `LambdaLR.step`, which all of transformers' schedules with a formula have."""
    import torch

    advance = torch.optim.lr_scheduler.LRScheduler.step
    begin = torch.optim.lr_scheduler.LambdaLR.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        step = self.step

        def twice(*args: Any, **kwargs: Any) -> None:
            step(*args, **kwargs)
            step(*args, **kwargs)
            _say("the schedule advances twice")

        self.step = twice

    assert advance is not None
    setattr(torch.optim.lr_scheduler.LambdaLR, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
