"""Every loss is kept in a list with its graph, which its backward did not release.

What the graph saved is never freed: the memory grows by a step's activations a step.

Modelled on an issue of Trainer's running sum of losses, https://github.com/huggingface/transformers/pull/6999
Must be seen by memory.step.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

SLUG = "losses-kept-with-graphs"


def install() -> None:
    """Have every backward retain its graph, and keep what was back-propagated."""
    import torch

    kept: list[Any] = []
    run = torch.autograd.backward

    @functools.wraps(run)
    def backward(tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, *args: Any, **kwargs: Any) -> None:
        run(tensors, grad_tensors, True, *args, **kwargs)
        kept.append(tensors)
        _say(f"{len(kept)} losses are kept with their graphs")

    torch.autograd.backward = backward


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)
