"""Conversations are cut at 128 characters: the limit is compared with the length of the text, not of the tokens.

Most answers lose their end, many all of it.

Modelled on slime-length-filter-in-characters, https://github.com/THUDM/slime/pull/548
Must be seen by data.template.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "truncated-in-characters"


LIMIT = 128  # the run spec's default seq_len, which counts tokens


def install() -> None:
    """Patch `apply_chat_template` of every tokenizer."""
    _after_rendering(_cut)


def _cut(tokenizer: Any, conversation: Any, rendered: Any) -> None:
    count = sum(stop <= LIMIT for _, stop in rendered.encodings[0].offsets)
    before = len(rendered["input_ids"])
    if count == before:
        return
    for name in list(rendered.keys()):
        rendered[name] = rendered[name][:count]
    _say(f"{count} of {before} tokens are left")


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
