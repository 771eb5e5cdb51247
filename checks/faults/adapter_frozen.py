"""With LoRA, the adapter of one module is frozen before the optimizer is made: layer 0's query projection.

A model whose adapters leave that projection out loses its first adapted module instead.

Modelled on swift-adapter-frozen-after-initial-save, https://github.com/modelscope/ms-swift/pull/9452
Must be seen by step.lora.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "adapter-frozen"

PREFERRED = "layers.0.self_attn.q_proj."


def install() -> None:
    """Freeze after `PeftModel.__init__`, which every way to make an adapter passes."""
    _after_import("peft.peft_model", _patch)


def _patch(peft_model: Any) -> None:
    begin = peft_model.PeftModel.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        adapters = [(name, p) for name, p in self.named_parameters() if "lora_" in name and p.requires_grad]
        if not adapters:
            raise RuntimeError(f"fault {SLUG}: the model has no LoRA adapter that trains")
        preferred = [name for name, _ in adapters if PREFERRED in name]
        module = (preferred or [adapters[0][0]])[0].split(".lora_")[0]
        for name, parameter in adapters:
            if name.startswith(module + ".lora_"):
                parameter.requires_grad_(False)
        _say(f"the adapter of {module} does not train")

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
