"""The prompt of every rejected answer loses its first tokens, and that of the preferred one does not.

Lengths are measured on one of the two, and the other is cut by them.

Modelled on https://github.com/hiyouga/LLaMA-Factory/issues/4617
Must be seen by data.preference.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "preference-prompt-cut"

LOST = 3
"""tokens, of prompts that are longer than twice as many"""


def install() -> None:
    """Patch the collator of preferences."""
    _after_import("trl.trainer.dpo_trainer", _patch)


def _patch(module: Any) -> None:
    collator = module.DataCollatorForPreference
    collate = collator.torch_call

    @functools.wraps(collate)
    def torch_call(self: Any, examples: list[dict[str, Any]]) -> dict[str, Any]:
        whole = collate(self, examples)
        cut = collate(self, [{**example, "prompt_ids": _cut(example["prompt_ids"])} for example in examples])
        _say(f"the prompts of {len(examples)} rejected answers lose {LOST} tokens")
        pads = {"input_ids": self.pad_token_id}
        return {name: _join(whole[name], cut[name], pads.get(name, 0)) for name in whole}

    collator.torch_call = torch_call


def _cut(prompt: list[int]) -> list[int]:
    return prompt[LOST:] if len(prompt) > 2 * LOST else prompt


def _join(whole: Any, cut: Any, pad: int) -> Any:
    """The first half of the rows whole, the second half cut: both are as wide as the wider."""
    rows = whole.shape[0] // 2
    joined = whole.new_full(whole.shape, pad)
    joined[:rows] = whole[:rows]
    joined[rows:, : cut.shape[1]] = cut[rows:]
    return joined


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
