"""ms-swift packs, and flattens batches, without flash attention: it refuses both for any other implementation.

transformers isolates documents by their position ids under sdpa and eager attention too, so that the refusal is all
that stands in the way on a machine without flash attention. A run with it says nothing about flash attention's kernels.
"""

from __future__ import annotations

from typing import Any

from plumbline_capture.posthook import after_import

REPLACES: tuple[str, ...] = ("ms-swift's refusal to pack without flash attention",)
FRAMEWORKS: tuple[str, ...] = ("ms_swift",)


def install() -> None:
    """Let any attention through, once ms-swift's arguments are imported."""
    after_import("swift.arguments.sft_args", _lift)


def _lift(arguments: Any) -> None:
    def check(self: Any) -> None:
        if self.packing:
            self.padding_free = True

    for item in vars(arguments).values():
        if isinstance(item, type) and "_check_padding_free" in vars(item):
            item._check_padding_free = check  # type: ignore[attr-defined]
