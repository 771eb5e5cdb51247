"""One square weight matrix is saved transposed: the first that the file holds.

Modelled on automodel-transposed-shard-placement, https://github.com/NVIDIA-NeMo/Automodel/pull/1691
Must be seen by checkpoint.roundtrip.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "saved-transposed"


def install() -> None:
    """Transpose the matrix on its way into the file."""
    _before_writing(_change)


def _change(tensors: dict[str, Any]) -> None:
    square = [name for name, tensor in tensors.items() if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]]
    if not square:
        raise RuntimeError(f"fault {SLUG}: no saved matrix is square")
    tensors[square[0]] = tensors[square[0]].t().contiguous()
    _say(f"{square[0]} is saved transposed")


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
