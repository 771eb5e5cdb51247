"""One weight is at random after a run was resumed, without an error: the first layer's attention output projection.

Modelled on hf-missing-weights-left-uninitialised, https://github.com/huggingface/transformers/issues/35437
Must be seen by checkpoint.roundtrip.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "loaded-at-random"

SUFFIX = "layers.0.self_attn.o_proj.weight"
STD = 0.02


def install() -> None:
    """Draw the weight again after transformers' Trainer has loaded a checkpoint."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    load = trainer.Trainer._load_from_checkpoint

    @functools.wraps(load)
    def _load_from_checkpoint(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        _change(self.model)

    trainer.Trainer._load_from_checkpoint = _load_from_checkpoint


def _change(model: Any) -> None:
    import torch

    for name, parameter in model.named_parameters():
        if name.endswith(SUFFIX):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
            parameter.data.copy_(STD * drawn)
            _say(f"{name} is drawn at random")
            return
    raise RuntimeError(f"fault {SLUG}: {type(model).__name__} has no {SUFFIX}")


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
