"""Megatron-core's fused cross-entropy without the rounding of its gradient to bfloat16.

`fused_vocab_parallel_cross_entropy` returns the gradient by the logits in bfloat16, whatever their dtype is
(https://github.com/NVIDIA/Megatron-LM/blob/core_v0.16.1/megatron/core/fusions/fused_cross_entropy.py). With this it
comes in theirs; so a run can be told apart whose gradients are off by that alone.
"""

from __future__ import annotations

import inspect
from typing import Any

from plumbline_capture.posthook import after_import

REPLACES: tuple[str, ...] = ("the rounding to bfloat16 in megatron.core.fusions.fused_cross_entropy",)

ROUNDING = "grad_input = grad_input.to(torch.bfloat16)"


def install() -> None:
    """Run the module's source without that line, once it is imported."""
    after_import("megatron.core.fusions.fused_cross_entropy", _lift)


def _lift(module: Any) -> None:
    source = inspect.getsource(module)
    if ROUNDING not in source:
        raise RuntimeError(f"{module.__name__} has no line {ROUNDING!r}: there is nothing to lift")
    exec(compile(source.replace(ROUNDING, "pass"), module.__file__, "exec"), module.__dict__)
