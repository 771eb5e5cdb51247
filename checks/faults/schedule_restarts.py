"""The learning-rate schedule starts over when a run is resumed, and sets its first rate.

A constant rate without warm-up hides it.

Modelled on slime-lr-restarts-on-resume, https://github.com/THUDM/slime/pull/1152
Must be seen by checkpoint.resume.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "schedule-restarts"


def install() -> None:
    """Let every `LambdaLR`, which all of transformers' schedules with a formula are, forget where it was."""
    import torch

    load = torch.optim.lr_scheduler.LambdaLR.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_last_lr(), strict=True):
            group["lr"] = rate
        _say(f"the schedule starts over, not from step {state_dict['last_epoch']}")

    setattr(torch.optim.lr_scheduler.LambdaLR, "load_state_dict", load_state_dict)  # noqa: B010 (a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
