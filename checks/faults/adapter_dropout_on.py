"""Dropout of 5 % stands before every adapter although none was asked for.

Modelled on a default that a recipe did not show, https://github.com/meta-pytorch/torchtune/pull/1492
Must be seen by step.lora.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "adapter-dropout-on"

RATE = 0.05


def install() -> None:
    """Change the dropout of every LoRA layer."""
    _after_import("peft.tuners.lora.layer", _patch)


def _patch(layer: Any) -> None:
    import torch

    update = layer.LoraLayer.update_layer

    @functools.wraps(update)
    def update_layer(self: Any, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        update(self, adapter_name, *args, **kwargs)
        self.lora_dropout[adapter_name] = torch.nn.Dropout(RATE)
        _say(f"what an adapter reads is dropped with p={RATE:g}")

    layer.LoraLayer.update_layer = update_layer


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
