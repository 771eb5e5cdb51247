"""The collator hands out labels that are already shifted by one, and the model shifts them again.

Position i is trained to predict token i + 2. The trainer counts the labels that it is given, so the divisor fits the
labels; the labels at the model's door no longer equal the input ids where they count.

Modelled on hf-encdec-double-shift, https://github.com/huggingface/transformers/pull/46903
Must be seen by step.loss.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "labels-shifted-twice"


def install() -> None:
    """Shift `labels` behind the collator of every DataLoader."""
    _after_collating(_shift)


def _shift(batch: Any) -> None:
    if "labels" not in batch:
        return
    labels = batch["labels"]
    shifted = labels.new_full(labels.shape, -100)
    shifted[..., :-1] = labels[..., 1:]
    batch["labels"] = shifted
    _say("labels leave the collator shifted by one")


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _after_collating(change: Callable[[Any], None]) -> None:
    """Call `change(batch)` on what the collator of any torch DataLoader returns, once, before anyone else sees it."""
    import torch.utils.data

    begin = torch.utils.data.DataLoader.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        collate = self.collate_fn
        if getattr(collate, "changed", False):
            return  # accelerate builds a second loader around the first one's collator

        def collate_fn(rows: Any) -> Any:
            batch = collate(rows)
            change(batch)
            return batch

        setattr(collate_fn, "changed", True)  # noqa: B010 (functions have no such field)
        self.collate_fn = collate_fn

    setattr(torch.utils.data.DataLoader, "__init__", __init__)  # noqa: B010 (a method of a typed class)
