"""The model is exported with its first layer as it was when it was loaded.

A run that trains adapters hides it: they are not the model's own.

Modelled on verl-weight-sync-tied-to-cache-flag, https://github.com/volcengine/verl/pull/4248
Must be seen by serving.logprobs.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "export-lags"

LAYER = "model.layers.0."


def install() -> None:
    """Keep the first layer as it was loaded, and put it into every file."""
    kept: dict[str, Any] = {}

    def keep(model: Any) -> None:
        layer = {name: value for name, value in model.named_parameters() if name.startswith(LAYER)}
        kept.update((name, value.detach().clone()) for name, value in layer.items())

    def change(tensors: dict[str, Any]) -> None:
        stale = [name for name in tensors if name in kept and kept[name].shape == tensors[name].shape]
        tensors.update((name, kept[name]) for name in stale)
        if stale:
            _say(f"{len(stale)} weights of {LAYER[:-1]} are exported as they were loaded")

    _after_loading(keep)
    _before_writing(change)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _before_writing(change: Callable[[dict[str, Any]], None]) -> None:
    """Call `change(tensors)` with what transformers' save_pretrained is about to write, by its name in the file."""

    def patch(modeling_utils: Any) -> None:
        write = modeling_utils.safe_save_file

        @functools.wraps(write)
        def safe_save_file(tensors: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            tensors = dict(tensors)
            change(tensors)
            return write(tensors, *args, **kwargs)

        modeling_utils.safe_save_file = safe_save_file

    _after_import("transformers.modeling_utils", patch)


def _after_loading(change: Callable[[Any], None]) -> None:
    """Call `change(model)` with every model that transformers' from_pretrained returns."""

    def patch(modeling_utils: Any) -> None:
        load = modeling_utils.PreTrainedModel.from_pretrained.__func__

        @functools.wraps(load)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            loaded = load(cls, *args, **kwargs)
            change(loaded[0] if isinstance(loaded, tuple) else loaded)  # a pair with output_loading_info=True
            return loaded

        modeling_utils.PreTrainedModel.from_pretrained = classmethod(from_pretrained)

    _after_import("transformers.modeling_utils", patch)


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
