"""What the recorder wraps of AutoModel: each micro-batch's labels, its losses in a pipeline, and the clipping.

One model a rank is seen at its door, as any model is. Of a pipeline, each rank runs a stage on parts of a micro-batch:
there the recipe's own step says what the micro-batch is, and the schedule's loss what came of it. Gradients are kept as
the clipping is given them: after the recipe has divided those of a pipeline by the tokens and those of experts by the
ranks, and before they are clipped.

Read by the recorder in the framework's process (`plumbline-capture --hooks`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from plumbline_capture.backward import keep_gradients, record_clip
from plumbline_capture.framework import adopt, keep_batch, keep_clip, keep_losses, keep_own_gradients
from plumbline_capture.loss import token_losses
from plumbline_capture.posthook import after_import
from plumbline_capture.represent import keep_tensor
from plumbline_capture.roots import Transposed

RECIPE = "nemo_automodel.recipes.llm.train_ft"
CHUNKED = "nemo_automodel.components.loss.chunked_ce"
TRAINING = "nemo_automodel.components.training.utils"

EXPERTS = (
    Transposed("mlp.experts.gate_and_up_projs", "mlp.experts.gate_up_proj", (0, 2, 1)),
    Transposed("mlp.experts.down_projs", "mlp.experts.down_proj", (0, 2, 1)),
)
"""(experts, hidden, 2 · intermediate) and (experts, intermediate, hidden); the checkpoint's matrices are stacked as
(experts, outputs, inputs)"""


def install(recorder: Any) -> None:
    """Wrap the recipe's methods and its clipping once they are imported."""
    recorder.transposed = EXPERTS
    watch = Watch(recorder)
    after_import(TRAINING, watch.wrap_clipping)
    after_import(RECIPE, watch.wrap_recipe)
    after_import(CHUNKED, watch.wrap_chunked)


class Watch:
    """One training of the recipe."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.pipeline = False
        self.divided_by: float | None = None
        """what the gradients of this step have been divided by since the backward, where that is known"""

    def wrap_recipe(self, module: Any) -> None:
        """Follow the recipe once it is set up, and each of its micro-batches."""
        recipe = module.TrainFinetuneRecipeForNextTokenPrediction
        setup, forward, scale = recipe.setup, recipe._forward_backward_step, module.scale_grads_and_clip_grad_norm

        @functools.wraps(setup)
        def wrapped_setup(this: Any) -> Any:
            result = setup(this)
            with self.recorder.shielded("model"):
                self.follow(this)
            return result

        @functools.wraps(forward)
        def _forward_backward_step(this: Any, idx: int, batch: Any, **kwargs: Any) -> Any:
            if not kwargs.get("is_train", True):
                return forward(this, idx, batch, **kwargs)
            if this.pp_enabled:
                return self.step_pipeline(this, batch, functools.partial(forward, this, idx, batch, **kwargs))
            if self.recorder.active:
                with self.recorder.guarded("labels"):
                    index = len(self.recorder.now.micro_batches)
                    keep_tensor(self.recorder, batch["labels"], kind="batch", name="labels", micro_batch=index)
            return forward(this, idx, batch, **kwargs)

        @functools.wraps(scale)
        def scale_grads_and_clip_grad_norm(*args: Any, **kwargs: Any) -> Any:
            tokens, ranks = kwargs.get("num_label_tokens"), kwargs.get("dp_group_size")
            self.divided_by = tokens / ranks if kwargs.get("pp_enabled") and tokens and ranks else None
            return scale(*args, **kwargs)

        recipe.setup, recipe._forward_backward_step = wrapped_setup, _forward_backward_step
        module.scale_grads_and_clip_grad_norm = scale_grads_and_clip_grad_norm

    def follow(self, recipe: Any) -> None:
        """State this rank's place, and in a pipeline its stage."""
        mesh = {"dp": recipe._get_dp_rank(), "tp": recipe._get_tp_rank(), "pp": recipe._get_pp_rank()}
        self.recorder.mesh = {axis: int(place or 0) for axis, place in mesh.items()}
        self.pipeline = bool(recipe.pp_enabled)
        if self.pipeline:
            if len(recipe.model_parts) != 1:
                raise ValueError(f"{len(recipe.model_parts)} stages a rank, known is one")
            adopt(self.recorder, recipe.model_parts[0], optimizers=recipe.optimizer, mesh=self.recorder.mesh)

    def step_pipeline(self, recipe: Any, batch: Any, run: Callable[[], Any]) -> Any:
        """Run a micro-batch through the pipeline, and keep it whole, with the losses of its parts."""
        rows = {name: value.detach().clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
        index = keep_batch(self.recorder, rows)
        schedule = recipe.pp.info.schedule
        loss_fn = getattr(schedule, "_loss_fn", None)
        if index is None or loss_fn is None or not recipe.pp.info.has_last_stage:
            return run()
        seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

        @functools.wraps(loss_fn)
        def wrapped_loss(output: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            loss = loss_fn(output, target, *args, **kwargs)
            with self.recorder.guarded(f"target of micro-batch {index}"):
                logits: Any = getattr(output, "logits", output[0] if isinstance(output, (list, tuple)) else output)
                losses = token_losses(logits.detach().flatten(0, 1), target.flatten()).view(target.shape)
                seen.append((target.detach().clone(), losses, loss.detach()))
            return loss

        schedule._loss_fn = wrapped_loss
        try:
            result = run()
        finally:
            schedule._loss_fn = loss_fn
        if seen:
            target, losses = (torch.cat([each[place] for each in seen]) for place in (0, 1))
            scalar = sum(float(loss) for _, _, loss in seen)
            keep_losses(self.recorder, index, target=target, losses=losses, scalar=scalar, dtype=seen[0][2].dtype)
        return result

    def wrap_chunked(self, module: Any) -> None:
        """Keep the loss of each token that the chunked loss makes of hidden states, out of sight of any logits."""
        original = module._ChunkedLinearCE.apply

        @functools.wraps(original)
        def apply(hidden: Any, weight: Any, labels: Any, *args: Any) -> Any:
            losses = original(hidden, weight, labels, *args)
            recorder = self.recorder
            if recorder.active and recorder.root is not None and recorder.root.model.training:
                with recorder.guarded("token_loss"):
                    micro_batch = recorder.micro_batch()
                    micro_batch.losses.append((labels.detach().cpu(), losses.detach().to(torch.float64).cpu()))
                    micro_batch.loss_source = "token_losses"
            return losses

        module._ChunkedLinearCE = types.SimpleNamespace(apply=apply)

    def wrap_clipping(self, module: Any) -> None:
        """Keep the gradients that are clipped, and what they were clipped by."""
        original = module.clip_grad_norm

        @functools.wraps(original)
        def clip_grad_norm(max_grad_norm: Any, model_parts: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if not recorder.active or recorder.root is None:
                return original(max_grad_norm, model_parts, *args, **kwargs)
            clipped = [p for part in model_parts for p in part.parameters() if p.grad is not None]
            if self.pipeline:
                keep_own_gradients(recorder, [(p, p.grad) for p in clipped], divided_by=self.divided_by)
            else:
                keep_gradients(recorder, clipped)
            recorder.active = False  # torch's own clipping, below, is a part of this one
            try:
                norm = original(max_grad_norm, model_parts, *args, **kwargs)
            finally:
                recorder.active = True
            if max_grad_norm is not None:
                whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                keep = keep_clip if self.pipeline else functools.partial(record_clip, norm_type=2.0)
                keep(recorder, clipped, max_norm=float(max_grad_norm), total_norm=float(whole))
            return norm

        module.clip_grad_norm = clip_grad_norm
