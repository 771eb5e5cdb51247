"""The loss is divided by the number of all tokens, those of padding and masked ones too.

Gradients shrink with padding.

Modelled on slime-token-count-ignores-mask, https://github.com/THUDM/slime/pull/365
Must be seen by step.denominator.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "padding-counted"


def install() -> None:
    """Patch the place where every trainer counts its targets."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    count = trainer.Trainer._get_num_items_in_batch

    @functools.wraps(count)
    def _get_num_items_in_batch(self: Any, batch_samples: Any, *args: Any, **kwargs: Any) -> Any:
        counted = count(self, batch_samples, *args, **kwargs)
        everything = sum(batch["input_ids"].numel() for batch in batch_samples)
        _say(f"the loss is divided by {everything}, not by {int(counted)}")
        return counted * 0 + everything

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
