"""The last row of every micro-batch has no target at all.

Its answer was looked for and not found.

Modelled on automodel-vlm-bpe-pattern-labels-all-masked, https://github.com/NVIDIA-NeMo/Automodel/pull/1862
Must be seen by data.mask.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "row-masked"

IGNORED = -100


def install() -> None:
    """Change the labels behind the collator of every DataLoader."""
    _after_collating(_mask_row)


def _mask_row(batch: Any) -> None:
    lost = int((batch["labels"][-1] != IGNORED).sum())
    batch["labels"][-1] = IGNORED
    _say(f"the last row loses {lost} targets")


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
