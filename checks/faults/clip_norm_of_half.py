"""Clipping uses the norm of half of the parameters, as one of two ranks holds them.

Gradients stay above the limit.

Modelled on ds-fp16-grad-norm-tp, https://github.com/deepspeedai/DeepSpeed/pull/5411
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "clip-norm-of-half"


def install() -> None:
    """Patch `torch.nn.utils.clip_grad_norm_`."""
    import torch

    clip = torch.nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = torch.stack([p.grad.norm() for p in listed[::2] if p.grad is not None]).norm()
        norm = clip(listed, max_norm, *args, **kwargs)
        # Clipped by the true norm; what half of it would have left is larger.
        rest = min(1.0, max_norm / float(own)) / min(1.0, max_norm / float(norm))
        for parameter in listed:
            if parameter.grad is not None:
                parameter.grad.mul_(rest)
        _say(f"clipped by a norm of {float(own):.6g}, not {float(norm):.6g}")
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
