"""Norm weights are put into the optimizer's decaying group.

The names that the trainer excludes for being norms are given back; biases stay excluded.

Modelled on https://github.com/huggingface/transformers/pull/35927
Must be seen by step.update.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "decay-on-norms"


def install() -> None:
    """Patch `Trainer.get_decay_parameter_names`, from which the groups are made."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    choose = trainer.Trainer.get_decay_parameter_names

    @functools.wraps(choose)
    def get_decay_parameter_names(self: Any, model: Any) -> list[str]:
        chosen = list(choose(self, model))
        norms = [
            name
            for name, parameter in model.named_parameters()
            if "norm" in name and not name.endswith("bias") and parameter.requires_grad and name not in chosen
        ]
        if not norms:
            raise RuntimeError(f"fault {SLUG}: no trainable norm weight is outside the decaying group")
        _say(f"{len(norms)} norm weights decay")
        return chosen + norms

    trainer.Trainer.get_decay_parameter_names = get_decay_parameter_names


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
