"""What the recorder wraps of Megatron-core: the end of the gradients' reduction, and clipping.

Gradients are taken after `finalize_model_grads`: reduced over data, context, expert and sequence parallel ranks and
over the tied embeddings of the first and last stage, and divided by the step's tokens. Read by the recorder in the
framework's process (`plumbline-capture --hooks`); the other adapter's hooks run this file for its functions.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from itertools import pairwise
from typing import Any

import torch
from plumbline_capture.framework import adopt, keep_batch, keep_clip, keep_losses, keep_own_gradients, keep_scalars
from plumbline_capture.posthook import after_import

OPTIMIZER = "megatron.core.optimizer.optimizer"


def install(recorder: Any) -> None:
    """Wrap clipping, the making of the optimizer, the model's forward and its loss, once Megatron is imported."""
    waiting: list[tuple[int, torch.Tensor]] = []
    after_import(OPTIMIZER, functools.partial(wrap_clipping, recorder))
    after_import("megatron.core.optimizer", functools.partial(wrap_making, recorder))
    after_import("megatron.core.models.gpt.gpt_model", functools.partial(wrap_forward, recorder, waiting))
    after_import("megatron.core.pipeline_parallel.schedules", functools.partial(wrap_loss, recorder, waiting))


def wrap_making(recorder: Any, module: Any) -> None:
    """Follow the model that an optimizer is made for."""
    original = module.get_megatron_optimizer

    @functools.wraps(original)
    def get_megatron_optimizer(config: Any, model_chunks: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = original(config, model_chunks, *args, **kwargs)
        with recorder.shielded("model"):
            if len(model_chunks) != 1:
                raise ValueError(f"{len(model_chunks)} model chunks a rank, known is one")
            adopt_megatron(recorder, model_chunks[0], optimizer, model_chunks[0].config)
        return optimizer

    module.get_megatron_optimizer = get_megatron_optimizer


def wrap_forward(recorder: Any, waiting: list[tuple[int, torch.Tensor]], module: Any) -> None:
    """Keep each batch as the model is given it; every stage of a pipeline is given the token ids."""
    original = module.GPTModel.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if self.training and torch.is_grad_enabled():
            given = inspect.signature(original).bind(self, *args, **kwargs).arguments
            batch = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
            index = keep_batch(recorder, as_rows(batch))
            if index is not None and self.post_process:
                waiting.append((index, given["labels"]))
        return output

    module.GPTModel.forward = forward


def wrap_loss(recorder: Any, waiting: list[tuple[int, torch.Tensor]], module: Any) -> None:
    """Keep the loss of each position, and the scalar that the last stage back-propagates."""
    original = module.forward_step_calc_loss

    @functools.wraps(original)
    def forward_step_calc_loss(model: Any, output_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(model, output_tensor, *args, **kwargs)
        if waiting:
            index, labels = waiting.pop(0)
            scalar, dtype = float(result[0].detach()), result[0].dtype
            keep_losses(recorder, index, target=labels, losses=output_tensor, scalar=scalar, dtype=dtype)
        return result

    module.forward_step_calc_loss = forward_step_calc_loss


def wrap_clipping(recorder: Any, module: Any) -> None:
    """Record what each Megatron optimizer clips by; those that are chained clip by the norm of all."""
    original = module.clip_grad_by_total_norm_fp32

    @functools.wraps(original)
    def clip_grad_by_total_norm_fp32(parameters: Any, max_norm: float, total_norm: float, *args: Any, **kw: Any) -> Any:
        result = original(parameters, max_norm, total_norm, *args, **kw)
        if not any(clip["total_norm"] == float(total_norm) for clip in recorder.now.clips):
            keep_clip(recorder, list(parameters), max_norm=float(max_norm), total_norm=float(total_norm))
        return result

    module.clip_grad_by_total_norm_fp32 = clip_grad_by_total_norm_fp32


def adopt_megatron(recorder: Any, model: Any, optimizer: Any, config: Any) -> None:
    """Follow a model that is wrapped for training, its optimizer, and its configuration's reduction of gradients."""
    mpu: Any = importlib.import_module("megatron.core.parallel_state")
    mesh = {
        "dp": mpu.get_data_parallel_rank(),
        "tp": mpu.get_tensor_model_parallel_rank(),
        "pp": mpu.get_pipeline_model_parallel_rank(),
        "cp": mpu.get_context_parallel_rank(),
        "ep": mpu.get_expert_model_parallel_rank(),
    }
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    stepped = [one.optimizer for one in chained if one.optimizer is not None]
    adopt(recorder, model, optimizers=stepped, mesh=mesh, flat=is_distributed(model))
    keep_scalars(recorder, read_scalars(recorder, config))
    wrap_reduction(recorder, model, config)


def wrap_reduction(recorder: Any, model: Any, config: Any) -> None:
    """Keep the gradients once they are reduced and divided."""
    original = config.finalize_model_grads_func

    @functools.wraps(original)
    def finalize_model_grads(models: Any, num_tokens: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = original(models, num_tokens, *args, **kwargs)
        reduced = find_reduced(model) if is_distributed(model) else None
        gradients = ((parameter, read_gradient(parameter, reduced)) for parameter in model.parameters())
        # finalize_model_grads adds the tokens of all ranks up in place
        divided_by = None if num_tokens is None else float(num_tokens)
        keep_own_gradients(recorder, gradients, divided_by=divided_by, partial=reduced is not None)
        return result

    config.finalize_model_grads_func = finalize_model_grads


def is_distributed(model: Any) -> bool:
    """Whether data-parallel ranks each reduce, and step, a part of every buffer of gradients."""
    return bool(model.ddp_config.use_distributed_optimizer)


def find_reduced(model: Any) -> dict[int, tuple[int, int]]:
    """Return id of a parameter → [start, stop) of its flat gradient that this rank has reduced; nothing for others.

    A bucket is divided into equal parts, one a data-parallel rank, whatever parameters lie in it.
    """
    found = {}
    for buffer in [*model.buffers, *model.expert_parallel_buffers]:
        size, rank = buffer.data_parallel_group.size(), buffer.data_parallel_group.rank()
        for parameter, (start, stop, bucket_id) in buffer.param_index_map.items():
            bucket = buffer.buckets[bucket_id]
            part = bucket.grad_data.numel() // size
            first = bucket.offset + rank * part
            found[id(parameter)] = (max(start, first) - start, min(stop, first + part) - start)
    return found


def read_gradient(parameter: Any, reduced: dict[int, tuple[int, int]] | None) -> Any:
    """Return a parameter's gradient as this rank has reduced it: zeros where another rank has."""
    gradient = getattr(parameter, "main_grad", None)
    if gradient is None or reduced is None:
        return gradient
    own = torch.zeros_like(gradient)
    start, stop = reduced[id(parameter)]
    if start < stop:
        own.view(-1)[start:stop] = gradient.reshape(-1)[start:stop]
    return own


def read_scalars(recorder: Any, config: Any) -> dict[str, dict[str, Any]]:
    """Settings in force, under the checkpoint's module paths: the epsilon of each norm, as the norm itself has it."""
    found: dict[str, dict[str, Any]] = {}
    root = recorder.root
    if root is None or recorder.names is None:
        return found
    for path, module in root.outer.named_modules():
        for parameter in module.parameters(recurse=False):
            name = root.name_of(parameter)
            epsilon = getattr(module, "eps", None)
            if name is None or epsilon is None or "norm" not in name.canonical:
                continue
            for canonical in recorder.names.names_of(name.canonical):
                if "norm" in canonical and isinstance(epsilon, float):
                    found[canonical.rsplit(".", 1)[0]] = {"variance_epsilon": epsilon, "source": path}
    return found


def own_positions(cu_seqlens: list[int], *, cp_size: int, cp_rank: int) -> torch.Tensor:
    """Return which positions a context-parallel rank computes: (n / cp_size,) int64.

    Each sequence is cut into 2 · cp_size chunks, of which rank r has r and 2 · cp_size − 1 − r, so that causal
    attention costs all ranks the same (Megatron-core's `get_batch_on_this_cp_rank`).
    """
    parts = []
    for start, stop in pairwise(cu_seqlens):
        size = (stop - start) // (2 * cp_size)
        for chunk in (cp_rank, 2 * cp_size - 1 - cp_rank):
            parts.append(torch.arange(start + chunk * size, start + (chunk + 1) * size))
    return torch.cat(parts)


def as_rows(collated: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The collated tensors under the names that a batch has: one position id and one mask a token."""
    batch = dict(collated)
    positions = batch.pop("text_position_ids", None)
    if positions is None:
        positions = batch.get("position_ids")
    if positions is not None:
        batch["position_ids"] = positions
    rows = batch.pop("attention_mask_2d", None)  # counts what fills rows up to a multiple of the ranks
    mask = batch.pop("attention_mask", None)
    if mask is not None and mask.dim() == 4:
        # True where attention is masked: a token that sees itself is none of the padding.
        rows = ~mask[:, 0].diagonal(dim1=-2, dim2=-1)
    if rows is not None:
        batch["attention_mask"] = rows.long()
    return batch
