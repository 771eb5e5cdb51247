"""The random number generators are not restored when a run is resumed: dropout draws other masks.

A model without dropout hides it.

Modelled on automodel-rng-saved-per-dp-rank, https://github.com/NVIDIA-NeMo/Automodel/pull/3437
Must be seen by checkpoint.resume.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "dropout-restarts"


def install() -> None:
    """Let transformers' Trainer leave the generators as they are."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    load = trainer.Trainer._load_rng_state

    @functools.wraps(load)
    def _load_rng_state(self: Any, checkpoint: Any) -> None:
        if checkpoint is not None:
            _say("the random state is left as it is")

    trainer.Trainer._load_rng_state = _load_rng_state


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
