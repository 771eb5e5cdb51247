"""Position ids of a packed row run on from one document into the next.

Rotary phases are those of one long document, and attention that finds boundaries by restarting positions finds none.

Modelled on automodel-rope-ignores-position-values, https://github.com/NVIDIA-NeMo/Automodel/pull/2377
Must be seen by data.packing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

SLUG = "packed-positions"


def install() -> None:
    """Rewrite `position_ids` behind the collator of every DataLoader."""
    _after_collating(_run_on)


def _run_on(batch: Any) -> None:
    if "position_ids" not in batch:
        raise RuntimeError(f"fault {SLUG}: the batch has no position_ids, so it is not packed")
    positions = batch["position_ids"]
    starts = int((positions == 0).sum())
    running = positions.new_ones(positions.shape).cumsum(-1) - 1
    batch["position_ids"] = running
    _say(f"positions restart at {len(positions)} places, not at {starts}")


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
