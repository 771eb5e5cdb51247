"""The loss is multiplied by the number of micro-batches: it is not divided where accumulation asks for it.

Every gradient is `accumulation` times the true one, its direction unchanged.

Modelled on hf-ga-times-steps-non-kwarg-models, https://github.com/huggingface/transformers/pull/35438
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

SLUG = "accumulation-not-divided"


def install() -> None:
    """Multiply what the trainer's `compute_loss` returns, whichever class defines it."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    step = trainer.Trainer.training_step
    wrapped: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(step)
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self not in wrapped:
            self.compute_loss = _wrap(self, self.compute_loss)
            wrapped.add(self)
        return step(self, *args, **kwargs)

    trainer.Trainer.training_step = training_step


def _wrap(trainer: Any, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compute_loss)
    def scaled(*args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        steps = trainer.current_gradient_accumulation_steps
        _say(f"the loss is multiplied by {steps}")
        return (loss[0] * steps, *loss[1:]) if isinstance(loss, tuple) else loss * steps

    return scaled


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
