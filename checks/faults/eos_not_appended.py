"""Rows lose their end-of-sequence token and what follows it: the model never sees where to stop.

Both rendered conversations and plain text, which the framework is to close itself.

Modelled on trl-sft-no-eos-appended, https://github.com/huggingface/trl/pull/3091
Must be seen by data.template.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "eos-not-appended"


def install() -> None:
    """Patch `__call__` and `apply_chat_template`, which calls it, of every tokenizer."""
    _after_import("transformers.tokenization_utils_base", _patch)


def _patch(tokenization: Any) -> None:
    base = tokenization.PreTrainedTokenizerBase
    inside: list[str] = []

    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            inside.append(function.__name__)
            try:
                encoded = function(self, *args, **kwargs)
            finally:
                inside.pop()
            if not inside and hasattr(encoded, "keys"):
                _cut(self, encoded)
            return encoded

        return wrapped

    base.__call__ = wrap(base.__call__)
    base.apply_chat_template = wrap(base.apply_chat_template)


def _cut(tokenizer: Any, encoded: Any) -> None:
    ids = encoded["input_ids"]
    if not ids or not isinstance(ids[0], int) or tokenizer.eos_token_id not in ids:
        return
    last = len(ids) - 1 - ids[::-1].index(tokenizer.eos_token_id)
    for name in list(encoded.keys()):
        encoded[name] = encoded[name][:last]
    _say(f"a row ends before token {last}, its last {tokenizer.eos_token}")


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
