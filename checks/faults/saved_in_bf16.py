"""Weights are saved in bf16, whatever they are held in.

Modelled on miles-conversion-drops-fp32, https://github.com/radixark/miles/pull/524
Must be seen by checkpoint.roundtrip.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "saved-in-bf16"


def install() -> None:
    """Round every weight on its way into the file."""
    _before_writing(_change)


def _change(tensors: dict[str, Any]) -> None:
    import torch

    held = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensors[name] = tensor.to(torch.bfloat16)
    _say(f"{len(tensors)} weights held in {', '.join(sorted(held))} are saved in bfloat16")


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
