"""Conversations are trained as plain text: the contents of their turns, a line each, without the chat template.

Modelled on https://github.com/huggingface/trl/issues/3468
Must be seen by data.template.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "template-ignored"


def install() -> None:
    """Patch `apply_chat_template` of every tokenizer."""
    _after_rendering(_flatten)


def _flatten(tokenizer: Any, conversation: Any, rendered: Any) -> None:
    if not isinstance(conversation[0], dict):
        return
    ids: list[int] = []
    learned: list[int] = []
    for message in conversation:
        part = tokenizer(message["content"] + "\n", add_special_tokens=False)["input_ids"]
        ids += part
        learned += [int(message["role"] == "assistant")] * len(part)
    lists = {"input_ids": ids, "attention_mask": [1] * len(ids), "assistant_masks": learned}
    for name in list(rendered.keys()):
        rendered[name] = lists.get(name, [0] * len(ids))
    _say(f"{len(conversation)} turns are joined without the template")


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
