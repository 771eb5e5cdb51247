"""The optimizer steps after every micro-batch: accumulation is off whatever was asked.

Each step sees a part of the rows that it should.

Modelled on accelerate-sync-each-batch-steps, https://github.com/huggingface/accelerate/pull/2790
Must be seen by environment.settings.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "step-each-micro-batch"


def install() -> None:
    """Change the arguments of every trainer."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    begin = trainer.Trainer.__init__

    @functools.wraps(begin)
    def __init__(self: Any, model: Any = None, args: Any = None, *rest: Any, **kwargs: Any) -> None:
        _say(f"a step has 1 micro-batch, not {args.gradient_accumulation_steps}")
        args.gradient_accumulation_steps = 1
        begin(self, model, args, *rest, **kwargs)

    setattr(trainer.Trainer, "__init__", __init__)  # noqa: B010 (a method of a typed class)


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
