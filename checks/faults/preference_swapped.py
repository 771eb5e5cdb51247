"""The collator gives the rejected answer of every pair in the place of the preferred one, and the reverse.

Modelled on https://github.com/huggingface/trl/issues/2578, a data set whose columns had to be exchanged to learn.
Must be seen by data.preference.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "preference-swapped"


def install() -> None:
    """Patch the collator of preferences."""
    _after_import("trl.trainer.dpo_trainer", _patch)


def _patch(module: Any) -> None:
    collator = module.DataCollatorForPreference
    collate = collator.torch_call

    @functools.wraps(collate)
    def torch_call(self: Any, examples: list[dict[str, Any]]) -> dict[str, Any]:
        swapped = [
            {**example, "chosen_ids": example["rejected_ids"], "rejected_ids": example["chosen_ids"]}
            for example in examples
        ]
        _say(f"chosen and rejected of {len(examples)} pairs change places")
        return collate(self, swapped)  # type: ignore[no-any-return]

    collator.torch_call = torch_call


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
