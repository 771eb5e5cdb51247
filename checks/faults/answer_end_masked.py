"""The last token of every answer is masked.

The mask is cut at the wrong end.

Modelled on verl-sft-mask-off-by-one, https://github.com/volcengine/verl/pull/3287
Must be seen by data.mask.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "answer-end-masked"

IGNORED = -100


def install() -> None:
    """Change the labels behind the collator of every DataLoader."""
    _after_collating(_mask_ends)


def _mask_ends(batch: Any) -> None:
    labels = batch["labels"]
    after = labels.roll(-1, dims=-1)
    after[:, -1] = IGNORED
    ends = (labels != IGNORED) & (after == IGNORED)
    labels[ends] = IGNORED
    _say(f"{int(ends.sum())} answers lose their last target")


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
