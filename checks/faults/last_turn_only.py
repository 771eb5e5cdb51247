"""Assistant-only training learns the last answer of a conversation and none of those before it.

Modelled on automodel-last-turn-mask-reasoning-hole, https://github.com/NVIDIA-NeMo/Automodel/pull/2365
Must be seen by data.mask.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "last-turn-only"


def install() -> None:
    """Patch `apply_chat_template` of every tokenizer."""
    _after_rendering(_change)


def _change(tokenizer: Any, conversation: Any, rendered: Any) -> None:
    if "assistant_masks" not in rendered:
        return
    mask = list(rendered["assistant_masks"])
    runs = _find_runs(mask)
    if len(runs) < 2:
        return
    for start, stop in runs[:-1]:
        mask[start:stop] = [0] * (stop - start)
    rendered["assistant_masks"] = mask
    _say(f"{len(runs) - 1} answers before the last are masked")


def _find_runs(mask: list[int]) -> list[tuple[int, int]]:
    """(start, stop) of each run of ones."""
    padded = [0, *mask, 0]
    edges = [place for place in range(len(mask) + 1) if padded[place] != padded[place + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _after_rendering(change: Callable[[Any, Any, Any], None]) -> None:
    """Call `change(tokenizer, conversation, rendered)` on each conversation that a chat template made into tokens.

    `rendered` maps input_ids, attention_mask and, where asked for, assistant_masks to a list with an entry a token.
    """

    def patch(tokenization: Any) -> None:
        base = tokenization.PreTrainedTokenizerBase
        render = base.apply_chat_template

        @functools.wraps(render)
        def apply_chat_template(self: Any, conversation: Any, *args: Any, **kwargs: Any) -> Any:
            rendered = render(self, conversation, *args, **kwargs)
            if hasattr(rendered, "keys") and rendered["input_ids"] and isinstance(rendered["input_ids"][0], int):
                change(self, conversation, rendered)
            return rendered

        base.apply_chat_template = apply_chat_template

    _after_import("transformers.tokenization_utils_base", patch)


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
