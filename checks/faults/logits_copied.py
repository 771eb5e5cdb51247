"""The loss takes four float32 copies of the logits of all positions, and each of them lives until its backward.

The value is the same: the copies are made one of the other.

Modelled on automodel-logits-fp32-oom, https://github.com/NVIDIA-NeMo/Automodel/pull/2603
Must be seen by memory.step.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "logits-copied"

COPIES = 4


def install() -> None:
    """Give copies of the logits to torch's cross-entropy, and keep them in the loss's own graph."""
    import torch

    measure = torch.nn.functional.cross_entropy

    @functools.wraps(measure)
    def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:
        copies = [input]
        for _ in range(COPIES):
            copies.append(copies[-1].float().clone())
        loss: Any = measure(copies[-1], *args, **kwargs)
        if loss.requires_grad:
            loss.register_hook(lambda gradient, copies=copies: gradient if copies else None)
        _say(f"{COPIES} copies of the logits are made")
        return loss

    torch.nn.functional.cross_entropy = cross_entropy


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
