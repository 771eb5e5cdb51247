"""Gradients are accumulated in float32 copies of their own, and the parameters' gradients stay beside them.

The update is right; the gradients take their memory twice.

Modelled on buffers of main gradients beside those of the parameters, https://github.com/NVIDIA/Megatron-LM/issues/690
Must be seen by memory.step.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

SLUG = "gradients-held-twice"


def install() -> None:
    """Keep a float32 copy of what has accumulated in the gradients of every optimizer's parameters."""
    sums: dict[int, Any] = {}

    def keep(parameters: list[Any]) -> None:
        for parameter in parameters:
            sums[id(parameter)] = parameter.grad.float().clone()
        _say(f"{len(sums)} gradients are held a second time")

    _after_backward(keep)


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
