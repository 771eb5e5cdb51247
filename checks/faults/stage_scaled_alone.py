"""The gradients that rank 1 holds are halved each time that a micro-batch adds to them.

In a pipeline these are the last layers': one stage trains at a smaller rate than the others.
Modelled on ds-pipeline-ga-scaled-per-stage, https://github.com/deepspeedai/DeepSpeed/pull/8154
Must be seen by parallel.gradients.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

SLUG = "stage-scaled-alone"


def install() -> None:
    """Hook the parameters when the optimizer is made, after the model has been divided."""
    import torch

    cls = torch.optim.Optimizer
    construct = cls.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if _place()[0] == 1:
            for parameter in (p for group in self.param_groups for p in group["params"]):
                parameter.register_post_accumulate_grad_hook(_halve)

    setattr(cls, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _halve(parameter: Any) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)
        _say(f"rank 1 halves the gradient of a parameter of shape {tuple(parameter.shape)}")


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks: (0, 1) where it is alone."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
