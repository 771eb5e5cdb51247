"""The load-balancing loss is added in full in every micro-batch.

The token loss is divided by the tokens of the step, the balance loss by nothing, so that its weight is multiplied by
the number of micro-batches.

Modelled on swift-aux-loss-not-scaled-with-items, https://github.com/modelscope/ms-swift/pull/5823
Must be seen by step.moe.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "balance-loss-each-micro-batch"


def install() -> None:
    """Patch `SFTTrainer.compute_loss`, which divides the balance loss by the accumulation steps."""
    _after_import("trl.trainer.sft_trainer", _patch)


def _patch(trainer: Any) -> None:
    compute = trainer.SFTTrainer.compute_loss

    @functools.wraps(compute)
    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps = self.current_gradient_accumulation_steps
        self.current_gradient_accumulation_steps = 1
        try:
            loss = compute(self, *args, **kwargs)
        finally:
            self.current_gradient_accumulation_steps = steps
        if self.aux_loss_enabled:
            _say(f"the load-balancing loss is not divided by {steps} micro-batches")
        return loss

    trainer.SFTTrainer.compute_loss = compute_loss


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _after_import(name: str, patch: Callable[[Any], None]) -> None:
    """Call `patch(module)` once `name` is imported: now, or as soon as its loader has run."""
    if name in sys.modules:
        patch(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, patch))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self.name = name
        self.patch = patch

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        # Probes call this without importing, so the patch waits for the loader.
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == self.name else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self.patch(module)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 (a method of a typed class)
        return spec
