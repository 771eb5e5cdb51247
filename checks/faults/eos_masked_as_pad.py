"""Every end-of-sequence token is masked by the collator, which takes it for padding.

The model is never trained to stop. The trainer counts the labels that are left, so the divisor fits them.

Modelled on trl-sft-eos-masked-as-pad, https://github.com/huggingface/trl/pull/3200
Must be seen by data.mask.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "eos-masked-as-pad"


IGNORED = -100


def install() -> None:
    """Wrap the collator that a Trainer is given, and whose tokenizer says which token ends a sequence."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    begin = trainer.Trainer.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.data_collator = _wrap(self.data_collator, self.processing_class.eos_token_id)

    trainer.Trainer.__init__ = __init__


def _wrap(collate: Callable[..., Any], eos_token_id: int) -> Callable[..., Any]:
    @functools.wraps(collate)
    def masking(*args: Any, **kwargs: Any) -> Any:
        batch = collate(*args, **kwargs)
        ends = (batch["input_ids"] == eos_token_id) & (batch["labels"] != IGNORED)
        batch["labels"] = batch["labels"].masked_fill(ends, IGNORED)
        _say(f"{int(ends.sum())} end tokens of a batch are masked")
        return batch

    return masking


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
