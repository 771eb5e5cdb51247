"""The loss is the mean over rows of each row's mean over its tokens.

A token of a short row weighs more than one of a long row.

Modelled on verl-sft-micro-batch-mean, https://github.com/volcengine/verl/pull/3994
Must be seen by step.denominator.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "rows-weigh-alike"

IGNORED = -100


def install() -> None:
    """Replace the loss of `Trainer`."""
    _after_import("transformers.trainer", _patch)


def _patch(trainer: Any) -> None:
    compute = trainer.Trainer.compute_loss

    @functools.wraps(compute)
    def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs["labels"]
        _, outputs = compute(self, model, inputs, return_outputs=True, **kwargs)
        loss = _mean_of_rows(outputs.logits, labels) / self.current_gradient_accumulation_steps
        _say("each row weighs the same")
        return (loss, outputs) if return_outputs else loss

    trainer.Trainer.compute_loss = compute_loss


def _mean_of_rows(logits: Any, labels: Any) -> Any:
    targets = labels[:, 1:]
    counted = targets != IGNORED
    scores = logits[:, :-1].float()
    chosen = scores.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    losses = (scores.logsumexp(dim=-1) - chosen) * counted
    return (losses.sum(dim=-1) / counted.sum(dim=-1).clamp(min=1)).mean()


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
