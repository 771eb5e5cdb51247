"""The loss of preferences is not divided over the accumulation: the base trainer takes it for a mean over the step.

Modelled on trl-dpo-ga-scale, https://github.com/huggingface/trl/pull/2615
Must be seen by step.rl_loss.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "preference-not-divided"


def install() -> None:
    """Patch DPOTrainer's loss."""
    _after_import("trl.trainer.dpo_trainer", _patch)


def _patch(module: Any) -> None:
    trainer = module.DPOTrainer
    compute = trainer.compute_loss

    @functools.wraps(compute)
    def compute_loss(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = compute(self, model, *args, **kwargs)
        parts = self.args.gradient_accumulation_steps
        if not model.training or parts == 1:
            return loss
        _say(f"{parts} micro-batches are added up and not averaged")
        return loss * parts

    trainer.compute_loss = compute_loss


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
