"""transformers' Trainer resumes with a checkpoint's names converted, as `from_pretrained` reads it.

`Trainer._load_from_checkpoint` of transformers 5.24 hands the file's tensors to `load_state_dict(strict=False)`, though
`save_pretrained` has written stacked experts under other names: they stay as the model was built
(https://github.com/huggingface/transformers/issues/48805). With this the checkpoint is read a second time, by the
model class; so a run can be told apart whose resume is wrong by that alone.
"""

from __future__ import annotations

import functools
from typing import Any

from plumbline_capture.posthook import after_import

REPLACES: tuple[str, ...] = ("the loading of model weights in transformers.Trainer._load_from_checkpoint",)


def install() -> None:
    """Wrap the loading once the Trainer is imported."""
    after_import("transformers.trainer", _convert)


def _convert(module: Any) -> None:
    original = module.Trainer._load_from_checkpoint

    @functools.wraps(original)
    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        original(self, resume_from_checkpoint, model)
        target = self.model if model is None else model
        saved = type(target).from_pretrained(resume_from_checkpoint, dtype=target.dtype)
        target.load_state_dict(saved.state_dict())

    module.Trainer._load_from_checkpoint = _load_from_checkpoint
