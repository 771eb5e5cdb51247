"""Clipping scales gradients below the limit up to it.

A limit that is never reached should change nothing.

Modelled on ds-clip-coefficient-max, https://github.com/deepspeedai/DeepSpeed/pull/5150
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "clip-scales-up"


def install() -> None:
    """Patch `torch.nn.utils.clip_grad_norm_`."""
    import torch

    clip = torch.nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        norm = clip(listed, max_norm, *args, **kwargs)
        if norm < max_norm:
            for parameter in listed:
                if parameter.grad is not None:
                    parameter.grad.mul_(max_norm / norm)
            _say(f"gradients of norm {float(norm):.6g} are scaled up to {max_norm:g}")
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
