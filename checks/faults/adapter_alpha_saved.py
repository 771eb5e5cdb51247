"""LoRA adapters are saved with twice the lora_alpha that they were trained with.

Modelled on peft-rslora-scale-reset, https://github.com/huggingface/peft/pull/2775
Must be seen by checkpoint.roundtrip.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLUG = "adapter-alpha-saved"

FACTOR = 2


def install() -> None:
    """Change adapter_config.json after PEFT has written it."""
    _after_import("peft.config", _patch)


def _patch(config: Any) -> None:
    save = config.PeftConfigMixin.save_pretrained

    @functools.wraps(save)
    def save_pretrained(self: Any, save_directory: Any, **kwargs: Any) -> None:
        save(self, save_directory, **kwargs)
        file = Path(save_directory) / "adapter_config.json"
        content = json.loads(file.read_text())
        content["lora_alpha"] *= FACTOR
        file.write_text(json.dumps(content, indent=2))
        _say(f"lora_alpha is saved as {content['lora_alpha']:g}")

    config.PeftConfigMixin.save_pretrained = save_pretrained


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
