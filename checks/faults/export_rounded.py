"""The norm weights of an exported model are rounded to bf16, and kept in the dtype that they have.

Modelled on miles-expert-bias-exported-in-bf16, https://github.com/radixark/miles/pull/811
Must be seen by serving.logprobs.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "export-rounded"


def install() -> None:
    """Round the norms on their way into the file."""
    _before_writing(_change)


def _change(tensors: dict[str, Any]) -> None:
    import torch

    norms = [name for name in tensors if "norm" in name]
    for name in norms:
        tensors[name] = tensors[name].to(torch.bfloat16).to(tensors[name].dtype)
    _say(f"{len(norms)} norm weights are rounded to bfloat16")


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
