"""Float32 was asked and the parameters are held in bf16.

Every small update is lost.

Modelled on automodel-fp32-master-weights-lost, https://github.com/NVIDIA-NeMo/Automodel/pull/1896
Must be seen by step.precision.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "master-weights-bf16"


def install() -> None:
    """Cast every model as it is loaded."""
    _after_loading(_change)


def _change(model: Any) -> None:
    model.bfloat16()
    _say("parameters are held in bfloat16")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


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
