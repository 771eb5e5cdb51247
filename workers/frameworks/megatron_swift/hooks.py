"""What the recorder wraps of Megatron-SWIFT: the collated batch, the loss of each position, and Megatron's own steps.

Read by the recorder in the framework's process (`plumbline-capture --hooks`).
"""

from __future__ import annotations

import functools
import importlib
import runpy
from pathlib import Path
from typing import Any

import torch
from plumbline_capture.framework import keep_batch, keep_losses
from plumbline_capture.posthook import after_import

IGNORED = -100
BASE, TRAINER = "swift.megatron.trainers.base", "swift.megatron.trainers.trainer"
_MEGATRON = runpy.run_path(str(Path(__file__).parent.parent / "megatron_core" / "hooks.py"))
adopt_megatron, own_positions, as_rows = (_MEGATRON[name] for name in ("adopt_megatron", "own_positions", "as_rows"))
wrap_clipping, OPTIMIZER = _MEGATRON["wrap_clipping"], _MEGATRON["OPTIMIZER"]


def install(recorder: Any) -> None:
    """Wrap the trainer's methods once it is imported."""
    watch = Watch(recorder)
    after_import(OPTIMIZER, functools.partial(wrap_clipping, recorder))
    after_import(BASE, watch.wrap_base)
    after_import(TRAINER, watch.wrap_loss)


class Watch:
    """One training: the micro-batches whose loss has not been seen yet, the oldest first."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.waiting: list[tuple[int, torch.Tensor, Any]] = []
        """(number, token ids as collated, what the trainer prepared of them)"""

    def wrap_base(self, module: Any) -> None:
        """Follow the model once training is set up, and each batch as it was collated."""
        trainer = module.BaseMegatronTrainer
        setup, prepare = trainer.setup_model_training, trainer._prepare_batch

        @functools.wraps(setup)
        def setup_model_training(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = setup(this, *args, **kwargs)
            with self.recorder.shielded("model"):
                if len(this.wrapped_models) != 1:
                    raise ValueError(f"{len(this.wrapped_models)} model chunks a rank, known is one")
                adopt_megatron(self.recorder, this.wrapped_models[0], this.optimizer, this.config)
            return result

        @functools.wraps(prepare)
        def _prepare_batch(this: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            collated = {name: value.clone() for name, value in data.items() if isinstance(value, torch.Tensor)}
            prepared = prepare(this, data, *args, **kwargs)
            if this.unwrapped_models[0].training:
                index = keep_batch(self.recorder, as_rows(collated))
                if index is not None and prepared.get("labels") is not None:
                    self.waiting.append((index, collated["input_ids"], prepared))
            return prepared

        trainer.setup_model_training, trainer._prepare_batch = setup_model_training, _prepare_batch

    def wrap_loss(self, module: Any) -> None:
        """Keep the loss of each position, and the sum that is back-propagated."""
        trainer = module.MegatronTrainer
        original = trainer.loss_func

        @functools.wraps(original)
        def loss_func(this: Any, output_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(this, output_tensor, *args, **kwargs)
            if self.waiting and this.unwrapped_models[0].training:
                index, input_ids, prepared = self.waiting.pop(0)
                with self.recorder.guarded(f"target of micro-batch {index}"):
                    target, losses = lay_out(output_tensor, kwargs["labels"], input_ids, prepared)
                    scalar = float(result[0].detach())
                    dtype = result[0].dtype
                    keep_losses(self.recorder, index, target=target, losses=losses, scalar=scalar, dtype=dtype)
            return result

        trainer.loss_func = loss_func


def lay_out(
    losses: torch.Tensor, labels: torch.Tensor, input_ids: torch.Tensor, prepared: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets and losses, each (rows, positions) as collated: this rank's where they are, −100 and 0 elsewhere.

    losses, labels: (rows, own positions), labels shifted already.
    """
    if labels.shape == input_ids.shape:
        return labels, losses
    mpu: Any = importlib.import_module("megatron.core.parallel_state")
    packed = prepared.get("packed_seq_params")
    length = input_ids.shape[1]
    edges = [0, length] if packed is None else packed.cu_seqlens_q.tolist()
    cp_size, cp_rank = mpu.get_context_parallel_world_size(), mpu.get_context_parallel_rank()
    own = own_positions(edges, cp_size=cp_size, cp_rank=cp_rank)
    if not torch.equal(input_ids[:, own], prepared["input_ids"]):
        raise ValueError("the context-parallel rank was given other positions than its chunks")
    target = torch.full_like(input_ids, IGNORED)
    whole = torch.zeros(input_ids.shape, dtype=losses.dtype)
    target[:, own], whole[:, own] = labels, losses.detach()
    return target, whole
