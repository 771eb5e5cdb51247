"""Labels are smoothed by 0.1, which nobody asked for.

Part of the objective is the mean over the whole vocabulary.

Modelled on hf-label-smoothing-ga, https://github.com/huggingface/transformers/pull/47261
Must be seen by step.loss.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "label-smoothing"

EPSILON = 0.1


def install() -> None:
    """Give every trainer a label smoother."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    begin = trainer.Trainer.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.label_smoother = trainer.LabelSmoother(epsilon=EPSILON)
        _say(f"labels are smoothed by {EPSILON:g}")

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
