"""AdamW begins as if it had taken a step already: its moments are zero and its count is one.

Bias correction is that of the step after; the rate of the first steps is too small.

Modelled on mcore-mfsdp-optimizer-dummy-step, https://github.com/NVIDIA/Megatron-LM/pull/5976
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "optimizer-one-step-ahead"


def install() -> None:
    """Give every AdamW a state."""
    _after_creating(_change)


def _change(optimizer: Any) -> None:
    import torch

    if not isinstance(optimizer, torch.optim.AdamW):
        raise RuntimeError(f"fault {SLUG}: {type(optimizer).__name__} has no bias correction")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zeros = torch.zeros_like(parameter)
            state = {"step": torch.tensor(1.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
            optimizer.state[parameter].update(state)
    _say("the optimizer's count begins at one")


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
