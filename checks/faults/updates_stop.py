"""After nine updates the weights that are trained on no longer follow the optimizer.

Modelled on verl-weight-sync-tied-to-cache-flag, https://github.com/volcengine/verl/pull/4248
Must be seen by convergence.overfit.
"""

from __future__ import annotations

import sys
from typing import Any

SLUG = "updates-stop"

LAST = 9


def install() -> None:
    """Put the weights back after each later step of every optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    steps: dict[int, int] = {}
    kept: dict[int, list[Any]] = {}

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1
        if steps[id(optimizer)] > LAST:
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            kept[id(optimizer)] = [(parameter, parameter.detach().clone()) for parameter in held]
            _say(f"update {steps[id(optimizer)]} does not reach the weights")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter, value in kept.pop(id(optimizer), []):
            parameter.data.copy_(value)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
