"""Gradients are clipped to norm 1 after every micro-batch, before the accumulation has ended.

The clip acts on what has accumulated so far, so that the sum of the micro-batches' gradients is no longer the step's
gradient: earlier micro-batches are scaled down more often than later ones.

Modelled on titan-pp-grad-accumulation-decay, https://github.com/pytorch/torchtitan/pull/1732
Must be seen by step.accumulation.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

SLUG = "clip-before-accumulation"

MAX_NORM = 1.0


def install() -> None:
    """Remember the parameters of every optimizer, and clip them after every `torch.autograd.backward`."""
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
            norm = torch.nn.utils.clip_grad_norm_(list(owned.values()), MAX_NORM)
            _say(f"gradients of norm {float(norm):.6g} clipped to {MAX_NORM:g} after a micro-batch")

    setattr(torch.optim.Optimizer, "__init__", __init__)  # noqa: B010 (a method of a typed class)
    torch.autograd.backward = backward


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
