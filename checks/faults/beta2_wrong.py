"""AdamW runs with beta2 0.99, whatever was asked for.

The first step is blind to it, because the bias correction cancels it; from the second on the updates differ.

Modelled on miles-fsdp-yaml-has-no-effect, https://github.com/radixark/miles/pull/2388
Must be seen by step.settings.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "beta2-wrong"

BETA2 = 0.99


def install() -> None:
    """Change the defaults that any optimizer with betas is made with."""
    import torch

    begin = torch.optim.Optimizer.__init__

    @functools.wraps(begin)
    def __init__(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        if "betas" in defaults:
            beta1, beta2 = defaults["betas"]
            defaults = {**defaults, "betas": (beta1, BETA2)}
            _say(f"beta2 is {BETA2:g}, not {beta2:g}")
        begin(self, params, defaults)

    setattr(torch.optim.Optimizer, "__init__", __init__)  # noqa: B010 (a method of a typed class)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
