"""Every rank trains on the first rank's rows.

The data-parallel size is taken for one; gradients are averaged over equal ones.

Modelled on automodel-ddp-group-size-one, https://github.com/NVIDIA-NeMo/Automodel/issues/1210
Must be seen by data.coverage.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "ranks-share-rows"


def install() -> None:
    """Patch the sampler that shares batches out over ranks."""
    _after_import("accelerate.data_loader", _patch)


def _patch(data_loader: Any) -> None:
    begin = data_loader.BatchSamplerShard.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        _say(f"rank {self.process_index} takes the rows of rank 0")
        self.process_index = 0

    data_loader.BatchSamplerShard.__init__ = __init__


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
