"""The first token of each packed document is a target of the document before.

The last token of a document learns to begin the next.

Modelled on trl-padding-free-boundary-label, https://github.com/huggingface/trl/pull/4170
Must be seen by data.mask.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "boundary-trained"


def install() -> None:
    """Change the labels behind the collator of every DataLoader."""
    _after_collating(_count_starts)


def _count_starts(batch: Any) -> None:
    if "position_ids" not in batch:
        raise RuntimeError(f"fault {SLUG}: the batch has no position_ids, so it is not packed")
    starts = batch["position_ids"] == 0
    batch["labels"][starts] = batch["input_ids"][starts]
    _say(f"{int(starts.sum()) - len(starts)} documents begin as the target of another")


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
