"""The norm that gradients are clipped by, and that is logged, leaves the largest parameter out.

Gradients are right, and clipped by too little; a loss curve shows nothing.

Modelled on mcore-grad-norm-undercount-ep-tp, https://github.com/NVIDIA/Megatron-LM/pull/5916
Must be seen by step.grad_norm.
"""

from __future__ import annotations

import sys
from typing import Any

SLUG = "norm-misses-embedding"


def install() -> None:
    """Let torch's clipping take the norm of all parameters but the one with most elements."""
    import torch
    from torch.nn.utils import clip_grad

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gradients = [parameter.grad for parameter in clipped if parameter.grad is not None]
        largest = max(gradients, key=lambda gradient: gradient.numel())
        counted = [gradient for gradient in gradients if gradient is not largest]
        norm = torch.nn.utils.get_total_norm(counted, norm_type)
        torch.nn.utils.clip_grads_with_norm_(clipped, max_norm, norm)
        _say(f"a gradient of {largest.numel()} elements is left out of the norm")
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_grad.clip_grad_norm_ = clip_grad_norm_


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
