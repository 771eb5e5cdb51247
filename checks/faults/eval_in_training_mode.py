"""The evaluation before the first step leaves the model in training mode, so that dropout acts in it.

Modelled on verl-megatron-logprob-in-train-mode, https://github.com/volcengine/verl/pull/4708
Must be seen by eval.loss.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "eval-in-training-mode"


def install() -> None:
    """Put the model back into training mode at each step of an evaluation."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    step = trainer.Trainer.prediction_step

    @functools.wraps(step)
    def prediction_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        model.train()
        _say("a batch is evaluated in training mode")
        return step(self, model, *args, **kwargs)

    trainer.Trainer.prediction_step = prediction_step


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
