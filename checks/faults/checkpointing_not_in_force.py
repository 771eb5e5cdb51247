"""Gradient checkpointing is switched on, and every layer is called as without it.

The flags say that it is on; nothing is recomputed, and all activations are held.

Modelled on automodel-activation-checkpointing-skipped, https://github.com/NVIDIA-NeMo/Automodel/pull/1941
Must be seen by memory.step.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "checkpointing-not-in-force"


def install() -> None:
    """Replace the checkpointing function that transformers hands to a model's layers."""
    _after_import("transformers.modeling_utils", _patch)


def _patch(modeling_utils: Any) -> None:
    cls = modeling_utils.PreTrainedModel
    switch = cls._set_gradient_checkpointing

    @functools.wraps(switch)
    def _set_gradient_checkpointing(self: Any, *args: Any, **kwargs: Any) -> None:
        switch(self, *args, **kwargs)
        for module in self.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                module._gradient_checkpointing_func = _call
        _say("layers are called without checkpointing")

    cls._set_gradient_checkpointing = _set_gradient_checkpointing


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


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
