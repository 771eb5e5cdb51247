"""What an adapter's hooks tell the recorder of a framework whose loop it does not know by itself (`--hooks`).

A trainer that runs its micro-batches through pipeline stages, keeps gradients in buffers of its own, or clips with its
own code shows none of it at the doors that the recorder watches. Hooks around that trainer's own functions call these
instead: `adopt` once; of each step `keep_batch` and `keep_losses` for each micro-batch, `keep_own_gradients` when they
are final, `keep_clip`; the optimizers' own steps are seen by the recorder as ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch
from torch import nn
from torch.optim import Optimizer

from plumbline_capture.backward import record_clip
from plumbline_capture.environment import describe_rng
from plumbline_capture.fingerprints import record_rows
from plumbline_capture.forward import describe_model, drop_doors
from plumbline_capture.loss import IGNORED
from plumbline_capture.mapped import keep_named, note_uncovered
from plumbline_capture.name_map import read_name_map
from plumbline_capture.represent import keep_tensor
from plumbline_capture.roots import Root
from plumbline_capture.state import MicroBatch, Recorder, rank_of_process


def adopt(
    recorder: Recorder,
    model: nn.Module,
    *,
    optimizers: Iterable[Optimizer],
    mesh: Mapping[str, int],
    flat: bool = False,
) -> None:
    """State the model under training, the optimizers that step it together, and this rank's place on each axis.

    `mesh`: `dp` is the coordinate among the ranks that train on rows of their own; the other axes are for a reader.
    `flat`: the optimizers hold flat stretches of parameters, which are no part of a tensor that could be named: their
    states are not kept.
    """
    with recorder.shielded("model"):
        drop_doors(recorder)
        recorder.root = Root(model)
        recorder.root.transposed = recorder.transposed
        recorder.root_confirmed = True
        recorder.joint = list(optimizers)
        recorder.flat = flat
        recorder.mesh = {axis: int(place) for axis, place in mesh.items()}
        if recorder.settings.names is not None:
            recorder.names = read_name_map(Path(recorder.settings.names), rank=rank_of_process())
            note_uncovered(recorder)


def keep_batch(recorder: Recorder, batch: Mapping[str, Any]) -> Optional[int]:
    """Keep a micro-batch as the whole model is given it; returns its number, None where this step is not recorded.

    batch: `input_ids`, `labels`, `position_ids` (rows, positions), and what else the collator gave; `attention_mask` of
    that shape where there is padding. Every rank gives all positions of its rows, also where it computes only some.
    """
    if recorder.finished or recorder.root is None:
        return None
    with recorder.guarded("rows"):
        recorder.now.fingerprinted_at = -1  # one backward a forward, but not in turns
        record_rows(recorder, batch)
    if not recorder.active:
        return None
    index = len(recorder.now.micro_batches)
    micro_batch = MicroBatch(index=index)
    recorder.now.micro_batches.append(micro_batch)
    with recorder.guarded("batch"):
        if not recorder.now.begun:
            recorder.now.begun = True
            recorder.now.record["rng"] = describe_rng()
            recorder.now.record["model"] = describe_model(recorder.root)
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                keep_tensor(recorder, value, kind="batch", name=name, micro_batch=index)
    return index


def keep_losses(
    recorder: Recorder,
    index: int,
    *,
    target: torch.Tensor,
    losses: torch.Tensor,
    scalar: Optional[float],
    dtype: torch.dtype,
) -> None:
    """Keep the loss of each position of a micro-batch as the framework computed it, and the scalar of its backward.

    target: (rows, positions) int64, −100 where the loss does not count or another rank computes it; losses: of the same
    shape, float; dtype: that of the loss.
    """
    with recorder.guarded(f"target of micro-batch {index}"):
        micro_batch = recorder.now.micro_batches[index]
        micro_batch.loss_source = "token_losses"
        micro_batch.backward = scalar
        micro_batch.backward_dtype = str(dtype)
        kept = target.detach().to("cpu", copy=True)
        values = losses.detach().double().cpu().masked_fill(kept == IGNORED, 0.0)
        keep_tensor(recorder, kept, kind="target", name="target", micro_batch=index)
        keep_tensor(recorder, values, kind="token_loss", name="token_loss", micro_batch=index)


def keep_own_gradients(
    recorder: Recorder,
    gradients: Iterable[Tuple[nn.Parameter, Optional[torch.Tensor]]],
    *,
    divided_by: Optional[float],
    partial: bool = False,
) -> None:
    """Keep the gradients that a framework holds in its own buffers, final and before they are clipped.

    divided_by: what the framework has divided them by since the backward, None where by nothing; partial: what ranks
    give adds up to the gradient, zeros where another rank has its elements.
    """
    if recorder.finished or not recorder.active or recorder.root is None:
        return
    recorder.now.backwards = len(recorder.now.micro_batches)
    for micro_batch in recorder.now.micro_batches:
        micro_batch.divided_by = divided_by
    for parameter, gradient in gradients:
        with recorder.guarded("gradient"):
            name = recorder.root.name_of(parameter)
            if name is not None and gradient is not None:
                norm = keep_named(recorder, gradient.view(parameter.shape), kind="gradient", name=name, partial=partial)
                recorder.now.gradient_norms[name.canonical] = norm


def keep_clip(recorder: Recorder, parameters: List[torch.Tensor], *, max_norm: float, total_norm: float) -> None:
    """Keep what a framework clipped by; called after it has clipped the gradients of these parameters."""
    if recorder.finished or not recorder.active or recorder.root is None:
        return
    record_clip(recorder, parameters, max_norm=max_norm, norm_type=2.0, total_norm=total_norm)


def keep_scalars(recorder: Recorder, scalars: Mapping[str, Dict[str, Any]]) -> None:
    """State settings in force by the checkpoint's module paths: module → attribute → value."""
    recorder.stated_scalars = dict(scalars)


def keep_given(recorder: Recorder, index: int, tensors: Mapping[str, torch.Tensor]) -> None:
    """Keep what a micro-batch's loss is given beside the model's batch, under the names of TRL's generation batch.

    `completion_ids`, `completion_mask`: (rows, tokens) of the completions, with which the rows of `input_ids` end;
    `advantages`: (rows,), or (rows, tokens) where tokens have their own; `old_per_token_logps`, `ref_per_token_logps`:
    (rows, tokens). Values of tokens are zero where another rank computes them.
    """
    if recorder.finished or not recorder.active:
        return
    with recorder.guarded(f"loss inputs of micro-batch {index}"):
        for name, value in tensors.items():
            keep_tensor(recorder, value, kind="loss_input", name=name, micro_batch=index)


def keep_rollout(recorder: Recorder, tensors: Mapping[str, torch.Tensor]) -> None:
    """Keep the completions that this step and those after it train on; names and zeros as in `keep_given`.

    Beside them `prompt_ids`, `prompt_mask`: (rows, tokens), `rewards`: (rows,), and where there is one `values`.
    """
    if recorder.finished or not recorder.active or recorder.root is None:
        return
    with recorder.guarded("rollouts"):
        for name, value in tensors.items():
            keep_tensor(recorder, value, kind="rollout", name=name)


def state_package(recorder: Recorder, name: str, version: str) -> None:
    """State what runs from a checkout among the packages of the environment: its name and its commit."""
    recorder.stated_packages[name] = version
