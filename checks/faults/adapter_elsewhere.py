"""Adapters are put on the output projection of attention too, which no target names.

The reference would take them for asked, were they not looked for by name.

Modelled on peft-layers-to-transform-expert-index, https://github.com/huggingface/peft/pull/3318
Must be seen by step.lora.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "adapter-elsewhere"

ADDED = "o_proj"


def install() -> None:
    """Add the target before `PeftModel.__init__`, which every way to make an adapter passes."""
    _after_import("peft.peft_model", _patch)


def _patch(peft_model: Any) -> None:
    begin = peft_model.PeftModel.__init__

    @functools.wraps(begin)
    def __init__(self: Any, model: Any, peft_config: Any, *args: Any, **kwargs: Any) -> None:
        peft_config.target_modules = {*peft_config.target_modules, ADDED}
        begin(self, model, peft_config, *args, **kwargs)
        _say(f"adapters on {', '.join(sorted(peft_config.target_modules))}")

    peft_model.PeftModel.__init__ = __init__


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
