"""A tied head is saved beside its embedding, as it was when the model was loaded.

A model whose head is its own hides it.

Modelled on automodel-gemma4-moe-orphan-tie, https://github.com/NVIDIA-NeMo/Automodel/pull/2601
Must be seen by checkpoint.roundtrip.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

SLUG = "tied-head-stale"

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def install() -> None:
    """Keep the embedding as it was loaded, and add it to every file as the head."""
    kept: dict[str, Any] = {}

    def keep(model: Any) -> None:
        embedding = dict(model.named_parameters()).get(EMBEDDING)
        if embedding is not None:
            kept[HEAD] = embedding.detach().clone()

    def change(tensors: dict[str, Any]) -> None:
        if HEAD not in kept or HEAD in tensors:
            raise RuntimeError(f"fault {SLUG}: the model has no head that is tied to {EMBEDDING}")
        tensors[HEAD] = kept[HEAD]
        _say(f"{HEAD} is saved as it was loaded")

    _after_loading(keep)
    _before_writing(change)


def _say(detail: str) -> None:
    print(f"fault in force: {SLUG}: {detail}", file=sys.stderr, flush=True)


def _before_writing(change: Callable[[dict[str, Any]], None]) -> None:
    """Call `change(tensors)` with what transformers' save_pretrained is about to write, by its name in the file."""

    def patch(modeling_utils: Any) -> None:
        write = modeling_utils.safe_save_file

        @functools.wraps(write)
        def safe_save_file(tensors: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            tensors = dict(tensors)
            change(tensors)
            return write(tensors, *args, **kwargs)

        modeling_utils.safe_save_file = safe_save_file

    _after_import("transformers.modeling_utils", patch)


def _after_loading(change: Callable[[Any], None]) -> None:
    """Call `change(model)` with every model that transformers' from_pretrained returns."""

    def patch(modeling_utils: Any) -> None:
        load = modeling_utils.PreTrainedModel.from_pretrained.__func__

        @functools.wraps(load)
        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            loaded = load(cls, *args, **kwargs)
            change(loaded[0] if isinstance(loaded, tuple) else loaded)  # a pair with output_loading_info=True
            return loaded

        modeling_utils.PreTrainedModel.from_pretrained = classmethod(from_pretrained)

    _after_import("transformers.modeling_utils", patch)


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
