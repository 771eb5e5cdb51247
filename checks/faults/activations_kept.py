"""A hook keeps the output of every layer, detached, until the next forward.

The memory of the layers' outputs is not free for the update and for what comes after it.

Modelled on activation checkpointing that kept its tensors, https://github.com/deepspeedai/DeepSpeed/pull/1698
Must be seen by memory.step.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "activations-kept"


def install() -> None:
    """Add the hook to every model as it is loaded."""
    _after_loading(_change)


def _change(model: Any) -> None:
    kept: dict[int, Any] = {}

    def keep(index: int) -> Callable[..., None]:
        def after(_module: Any, _args: Any, output: Any) -> None:
            kept[index] = (output[0] if isinstance(output, tuple) else output).detach()
            _say(f"the output of layer {index} is kept")

        return after

    for index, layer in enumerate(_layers(model)):
        layer.register_forward_hook(keep(index))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _layers(model: Any) -> list[Any]:
    """The decoder's layers, in order."""
    return list(model.model.layers)


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
