"""Each micro-batch's loss is the mean over its own tokens, and the micro-batches are averaged.

Rows of short micro-batches weigh more than they should. The loss hardly moves, the gradients do.

Modelled on hf-ga-mean-of-means, https://github.com/huggingface/transformers/pull/34191
Must be seen by step.denominator.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "micro-batch-mean"


def install() -> None:
    """Take the step's count from the trainer, which then averages micro-batch means."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    count = trainer.Trainer._get_num_items_in_batch

    @functools.wraps(count)
    def _get_num_items_in_batch(self: Any, *args: Any, **kwargs: Any) -> None:
        if count(self, *args, **kwargs) is None:
            raise RuntimeError(f"fault {SLUG}: this trainer does not divide by a count")
        _say("the loss is the mean of the micro-batches' means")

    trainer.Trainer._get_num_items_in_batch = _get_num_items_in_batch


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
