"""Gradients of all but the last micro-batch are dropped.

They are set to zero before each backward.

Modelled on titan-rl-zero-grad-each-microbatch, https://github.com/pytorch/torchtitan/pull/3575
Must be seen by step.accumulation.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "zero-grad-each-micro-batch"


def install() -> None:
    """Patch `Trainer.training_step`."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    step = trainer.Trainer.training_step

    @functools.wraps(step)
    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        model.zero_grad()
        _say("gradients are set to zero before a micro-batch")
        return step(self, model, *args, **kwargs)

    trainer.Trainer.training_step = training_step


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
