"""The loss is multiplied by a data-parallel size of eight, to undo an average that nobody takes.

Every gradient is eight times the true one; clipping hides it from the update.

Modelled on automodel-seqcls-dp-overscale, https://github.com/NVIDIA-NeMo/Automodel/issues/3846
Must be seen by step.denominator.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import weakref
from collections.abc import Callable
from typing import Any

SLUG = "loss-times-ranks"

RANKS = 8


def install() -> None:
    """Change the loss of every trainer."""
    _around_loss(_multiply)


def _multiply(trainer: Any, loss: Any) -> Any:
    _say(f"the loss is multiplied by {RANKS}")
    return loss * RANKS


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _around_loss(change: Callable[[Any, Any], Any]) -> None:
    """Let `change(trainer, loss)` replace what any trainer's `compute_loss` gives back."""

    def patch(trainer: Any) -> None:
        step = trainer.Trainer.training_step
        wrapped: weakref.WeakSet[Any] = weakref.WeakSet()

        @functools.wraps(step)
        def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self not in wrapped:
                compute_loss = self.compute_loss

                @functools.wraps(compute_loss)
                def changed(*args: Any, **kwargs: Any) -> Any:
                    loss = compute_loss(*args, **kwargs)
                    return (change(self, loss[0]), *loss[1:]) if isinstance(loss, tuple) else change(self, loss)

                self.compute_loss = changed
                wrapped.add(self)
            return step(self, *args, **kwargs)

        trainer.Trainer.training_step = training_step

    _after_import("transformers.trainer", patch)


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
