"""Assistant-only training learns the header before every answer too, which is always given at inference.

Modelled on trl-completion-mask-includes-header, https://github.com/huggingface/trl/pull/4201
Must be seen by data.mask.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "header-trained"


def install() -> None:
    """Patch `apply_chat_template` of every tokenizer."""
    _after_rendering(_change)


def _change(tokenizer: Any, conversation: Any, rendered: Any) -> None:
    if "assistant_masks" not in rendered:
        return
    ids, mask = rendered["input_ids"], list(rendered["assistant_masks"])
    special = set(tokenizer.added_tokens_decoder)
    added = 0
    for start, _ in _find_runs(mask):
        header = next((place for place in range(start - 1, -1, -1) if ids[place] in special), start)
        mask[header:start] = [1] * (start - header)
        added += start - header
    rendered["assistant_masks"] = mask
    _say(f"{added} tokens of headers are trained in a conversation")


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
