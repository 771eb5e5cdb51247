"""Targets and per-token losses as the loss function sees them."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch.nn import functional

from plumbline_capture.calls import output_field
from plumbline_capture.represent import keep_tensor
from plumbline_capture.state import MicroBatch, Recorder, inside_backward, is_compiling

IGNORED = -100
"""label that is not counted: the default `ignore_index` of torch's cross_entropy"""

_CHUNK = 1 << 17  # logits taken to float64 at once: 1 MB stays in a core's cache
_POSITIONAL = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")


def wrap_cross_entropy(recorder: Recorder) -> None:
    """Observe `torch.nn.functional.cross_entropy`, which torch's and Hugging Face's losses call by attribute."""
    original: Callable[..., torch.Tensor] = functional.cross_entropy
    running: List[bool] = []

    @functools.wraps(original)
    def cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
        # of a model that its framework's hooks stated, they say what the losses were
        if is_compiling() or not recorder.active or running or recorder.joint:
            return original(*args, **kwargs)
        running.append(True)  # a torch function mode (a default device) calls this very function again from within
        try:
            with recorder.guarded("token_loss"):
                _observe(recorder, {**dict(zip(_POSITIONAL, args)), **kwargs})
            return original(*args, **kwargs)
        finally:
            running.clear()

    # torch.jit.script compiles what a function calls, and cannot compile *args: hand it the original
    cross_entropy.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    functional.cross_entropy = cross_entropy


def _observe(recorder: Recorder, call: Mapping[str, Any]) -> None:
    logits, target = call["input"], call["target"]
    in_training_forward = bool(recorder.doors)  # re-entrant checkpointing runs the forward without gradients
    if inside_backward() or recorder.root is None or not recorder.root.model.training:
        return
    if not in_training_forward and not logits.requires_grad:
        return  # a metric
    ignore_index = int(call.get("ignore_index", IGNORED))
    micro_batch = recorder.micro_batch()
    seen: Dict[str, Any] = {
        "reduction": call.get("reduction", "mean"),
        "ignore_index": ignore_index,
        "dtype": str(logits.dtype),
        "label_smoothing": float(call.get("label_smoothing", 0.0)),
        "weighted": call.get("weight") is not None,
        "counted": None,
    }
    micro_batch.cross_entropy.append(seen)
    if target.is_floating_point():
        recorder.note_missing("target", "cross_entropy was given class probabilities, not classes")
        return
    classes = logits.movedim(1, -1).reshape(-1, logits.shape[1]) if logits.dim() > 1 else logits.reshape(1, -1)
    flat = target.detach().reshape(-1)
    flat = torch.where(flat == ignore_index, torch.full_like(flat, IGNORED), flat)
    seen["counted"] = int((flat != IGNORED).sum())
    micro_batch.losses.append((flat.cpu(), token_losses(classes.detach(), flat)))
    micro_batch.loss_source = "cross_entropy"


def token_losses(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return −log p of each target, computed in float64: (n,) float64 on the CPU, 0 where the target is −100.

    logits: (n, classes); target: (n,) integers.
    """
    losses = torch.zeros(target.shape[0], dtype=torch.float64, device=logits.device)
    counted = torch.nonzero(target != IGNORED).squeeze(1)
    height = max(1, _CHUNK // max(logits.shape[1], 1))
    for rows in torch.split(counted, height):
        values = logits.index_select(0, rows).to(torch.float64)
        chosen = values.gather(1, target.index_select(0, rows).unsqueeze(1).to(torch.int64)).squeeze(1)
        losses[rows] = torch.logsumexp(values, dim=1) - chosen
    return losses.cpu()


def take_log_probs(micro_batch: MicroBatch, *, arguments: Mapping[str, Any], output: Any) -> None:
    """Take the per-token losses of a fused head (TRL's FusedCausalLMOutput): `log_probs` beside `label_mask`.

    Its labels are those that the model was called with, shifted (`labels[:, 1:]`), or `shift_labels` as they are.
    """
    log_probs, mask = output_field(output, "log_probs"), output_field(output, "label_mask")
    if log_probs is None or mask is None:
        return
    target = arguments.get("shift_labels")
    if target is None and isinstance(arguments.get("labels"), torch.Tensor):
        target = arguments["labels"][:, 1:]
    if not isinstance(target, torch.Tensor) or target.shape != mask.shape:
        raise ValueError(f"log_probs of shape {tuple(log_probs.shape)} came without labels of that shape")
    counted = mask.to(target.device)
    seen = torch.where(counted, target, torch.full_like(target, IGNORED)).cpu()
    losses = (-log_probs.detach()).to(torch.float64).masked_fill(~mask, 0.0)
    micro_batch.losses = [(seen, losses.cpu())]
    micro_batch.loss_source = "log_probs"


def defer_logits(micro_batch: MicroBatch, *, arguments: Mapping[str, Any], output: Any) -> None:
    """Remember logits and labels until the backward begins, should no loss function be seen before."""
    logits, labels, tokens = (output_field(output, "logits"), arguments.get("labels"), arguments.get("input_ids"))
    if micro_batch.losses or logits is None:
        return
    if isinstance(tokens, torch.Tensor) and labels is None and logits.shape == (tokens.shape[0], 1):
        micro_batch.scores = logits.detach()[:, 0].clone()
    if logits.dim() != 3:
        return
    if isinstance(labels, torch.Tensor):
        if logits.shape[:2] == labels.shape:
            micro_batch.fallback = (logits.detach(), labels)
    elif isinstance(tokens, torch.Tensor) and logits.shape[:2] == tokens.shape:
        micro_batch.unlabelled = (logits.detach(), tokens)


def settle_losses(recorder: Recorder, micro_batch: MicroBatch) -> None:
    """Put a micro-batch's targets and token losses among the kept tensors; called when its backward begins."""
    fallback, micro_batch.fallback = micro_batch.fallback, None
    unlabelled, micro_batch.unlabelled = micro_batch.unlabelled, None
    scores, micro_batch.scores = micro_batch.scores, None
    if not micro_batch.losses and scores is not None:
        keep_tensor(recorder, scores, kind="score", name="score", micro_batch=micro_batch.index)
        micro_batch.loss_source = "score"
        return
    if not micro_batch.losses and fallback is not None:
        logits, labels = fallback
        target = labels[:, 1:].to(logits.device)
        losses = token_losses(logits[:, :-1].reshape(-1, logits.shape[-1]), target.reshape(-1))
        micro_batch.losses = [(target.cpu(), losses.view(target.shape))]
        micro_batch.loss_source = "logits"
    if not micro_batch.losses:
        recorder.note_missing(
            f"target of micro-batch {micro_batch.index}",
            "neither cross_entropy nor log-probabilities nor logits with labels were seen before its backward",
        )
        if unlabelled is not None:
            _keep_next_tokens(recorder, micro_batch, *unlabelled)
        return
    target, losses = micro_batch.losses[0]
    if len(micro_batch.losses) > 1 or target.dim() == 1:
        target = torch.cat([part.reshape(-1) for part, _ in micro_batch.losses])
        losses = torch.cat([part.reshape(-1) for _, part in micro_batch.losses])
        shape = _shape_of_batch(target.numel(), micro_batch.rows_and_positions)
        target, losses = target.view(shape), losses.view(shape)
    micro_batch.losses = []
    keep_tensor(recorder, target, kind="target", name="target", micro_batch=micro_batch.index)
    keep_tensor(recorder, losses, kind="token_loss", name="token_loss", micro_batch=micro_batch.index)
    if (
        unlabelled is not None and target.dim() == 1
    ):  # of a part of the rows: what else the loss is made of is not there
        _keep_next_tokens(recorder, micro_batch, *unlabelled)


def _keep_next_tokens(recorder: Recorder, micro_batch: MicroBatch, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    """Keep −log p of each row's own next token, and its mean over the vocabulary: what any loss is made of.

    logits: (rows, positions, classes); tokens: (rows, positions). Both kept as (rows, positions − 1) float64.
    """
    classes = logits[:, :-1].reshape(-1, logits.shape[-1])
    target = tokens[:, 1:].to(logits.device).reshape(-1)
    shape = (tokens.shape[0], tokens.shape[1] - 1)
    for field, losses in (("loss", token_losses(classes, target)), ("mean", _mean_losses(classes))):
        keep_tensor(
            recorder,
            losses.view(shape),
            kind="next_token",
            name="next_token",
            field=field,
            micro_batch=micro_batch.index,
        )


def _mean_losses(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean of −log p over the classes, in float64: (n,) of logits (n, classes)."""
    parts = []
    for rows in torch.split(logits, max(1, _CHUNK // max(logits.shape[1], 1))):
        values = rows.to(torch.float64)
        parts.append(torch.logsumexp(values, dim=1) - values.mean(dim=1))
    return torch.cat(parts).cpu()


def _shape_of_batch(count: int, batch: Optional[Tuple[int, int]]) -> Tuple[int, ...]:
    """Return (rows, positions), or one position less where the loss dropped the last, or (count,)."""
    if batch is not None:
        rows, positions = batch
        for columns in (positions, positions - 1):
            if count > 0 and rows * columns == count:
                return rows, columns
    return (count,)
