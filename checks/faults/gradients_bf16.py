"""Gradients are rounded to bf16 after every micro-batch.

Accumulation keeps eight bits.

Modelled on automodel-gradient-reduction-bf16-default, https://github.com/NVIDIA-NeMo/Automodel/pull/2237
Must be seen by step.precision.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

SLUG = "gradients-bf16"


def install() -> None:
    """Round the gradients of every optimizer's parameters."""
    _after_backward(_round)


def _round(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad.copy_(parameter.grad.bfloat16())
    _say(f"{len(parameters)} gradients are rounded to bf16")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _after_backward(change: Callable[[list[Any]], None]) -> None:
    """Call `change(parameters)`, those that any optimizer holds, after each `torch.autograd.backward`."""
    import torch

    owners: weakref.WeakSet[Any] = weakref.WeakSet()
    begin = torch.optim.Optimizer.__init__
    run = torch.autograd.backward

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        owners.add(self)

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> None:
        run(*args, **kwargs)
        owned = {id(p): p for owner in owners for group in owner.param_groups for p in group["params"]}
        if owned:
            change([parameter for parameter in owned.values() if parameter.grad is not None])

    setattr(torch.optim.Optimizer, "__init__", __init__)  # noqa: B010 (a method of a typed class)
    torch.autograd.backward = backward
