"""One label that should count is ignored in every micro-batch: the last counted one of the first row.

The labels at the model's door are whole; the loss, behind it, sees one target fewer, and the trainer's count still
has it. That is how an end token is lost that is taken for padding.

Modelled on trl-sft-eos-masked-as-pad, https://github.com/huggingface/trl/pull/3200
Must be seen by step.loss.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import weakref
from collections.abc import Callable
from typing import Any

SLUG = "label-masked"

IGNORED = -100


def install() -> None:
    """Wrap the forward of the model that `Trainer.training_step` is given."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    step = trainer.Trainer.training_step
    wrapped: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(step)
    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if model not in wrapped:
            model.forward = _wrap(model.forward)
            wrapped.add(model)
        return step(self, model, *args, **kwargs)

    trainer.Trainer.training_step = training_step


def _wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def masked_forward(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("labels") is not None:
            labels = kwargs["labels"].clone()
            position = int((labels[0] != IGNORED).nonzero()[-1])
            labels[0, position] = IGNORED
            kwargs["labels"] = labels
            _say(f"the label at row 0, position {position} is ignored")
        return forward(*args, **kwargs)

    return masked_forward


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
