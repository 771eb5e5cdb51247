"""Install the recorder's hooks in this process, right after torch was imported."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from types import ModuleType
from typing import Any

from plumbline_capture.backward import wrap_backward, wrap_clipping
from plumbline_capture.calls import to_float
from plumbline_capture.forward import watch_for_root
from plumbline_capture.given import observe_grpo, observe_kto, watch_loss
from plumbline_capture.loss import wrap_cross_entropy
from plumbline_capture.memory import hook_memory
from plumbline_capture.optimizer import hook_optimizers
from plumbline_capture.posthook import after_import
from plumbline_capture.scaler import wrap_scaler
from plumbline_capture.settings import Settings
from plumbline_capture.state import Recorder
from plumbline_capture.writer import publish_last_notes


def install(settings: Settings) -> Recorder:
    """Install the hooks; returns the recorder that they share."""
    recorder = Recorder(settings)
    if settings.memory:
        recorder.meter = hook_memory(recorder)
    else:  # what these keep until the backward would be memory
        wrap_cross_entropy(recorder)
        wrap_clipping(recorder)
    wrap_backward(recorder)
    hook_optimizers(recorder)
    wrap_scaler(recorder)
    watch_for_root(recorder)
    atexit.register(publish_last_notes, recorder)
    after_import("transformers.trainer", functools.partial(_observe_trainer, recorder))
    if not settings.memory:
        after_import("trl.trainer.grpo_trainer", functools.partial(observe_grpo, recorder))
        after_import("trl.trainer.kto_trainer", functools.partial(observe_kto, recorder))
    return recorder


def _observe_trainer(recorder: Recorder, trainer_module: ModuleType) -> None:
    """Learn from Hugging Face's Trainer the number of items that it divides the step's loss by."""
    trainer: Any = getattr(trainer_module, "Trainer", None)
    original = getattr(trainer, "training_step", None)
    if original is None:
        sys.stderr.write("plumbline-capture: transformers.trainer has no Trainer.training_step\n")
        return

    @functools.wraps(original)
    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.active:
            with recorder.guarded("num_items_in_batch"):
                recorder.num_items_in_batch = to_float(args[0] if args else kwargs.get("num_items_in_batch"))
        with watch_loss(recorder, self) if recorder.active and recorder.meter is None else contextlib.nullcontext():
            return original(self, model, inputs, *args, **kwargs)

    trainer.training_step = training_step
