"""The causal language-model loss from its definition: −log p of each counted target, summed, over a denominator."""

from __future__ import annotations

import torch

IGNORE_INDEX = -100
"""A label that is not counted (the convention of torch.nn.CrossEntropyLoss)."""


def shift_labels(labels: torch.Tensor) -> torch.Tensor:
    """targets[b, t] = labels[b, t + 1]: the token after t. labels: (B, S) int → (B, S), last column −100.

    >>> shift_labels(torch.tensor([[5, 6, 7]])).tolist()
    [[6, 7, -100]]
    """
    targets = torch.full_like(labels, IGNORE_INDEX)
    targets[..., :-1] = labels[..., 1:]
    return targets


def count(targets: torch.Tensor) -> int:
    """The number of counted targets."""
    return int((targets != IGNORE_INDEX).sum())


def token_losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """−log softmax(logits)[target] where the target counts, else 0, in nats.

    logits: (…, V); targets: (…) int → (…) float64 for float64 logits, else float32, to which lower precisions are
    taken first, as such models are trained. Raises ValueError for a target outside the vocabulary.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"targets have shape {tuple(targets.shape)}, logits {tuple(logits.shape)}")
    counted = targets != IGNORE_INDEX
    kept = targets.masked_fill(~counted, 0)
    if kept.numel() and not 0 <= int(kept.min()) <= int(kept.max()) < logits.shape[-1]:
        raise ValueError(
            f"targets reach from {int(kept.min())} to {int(kept.max())}, the vocabulary has {logits.shape[-1]}"
        )
    if logits.dtype != torch.float64:
        logits = logits.to(torch.float32)
    chosen = logits.gather(-1, kept[..., None])[..., 0]
    return (torch.logsumexp(logits, dim=-1) - chosen).masked_fill(~counted, 0.0)


def objective(token_losses: torch.Tensor, targets: torch.Tensor, *, denominator: float) -> torch.Tensor:
    """Σ of the counted token losses / denominator: a scalar of their dtype.

    The mean over a step of several micro-batches has the counted tokens of the *whole step* as denominator. Raises
    ValueError for a denominator that is not positive.
    """
    if not denominator > 0:
        raise ValueError(f"the denominator is {denominator}: nothing is counted")
    return token_losses.masked_fill(targets == IGNORE_INDEX, 0.0).sum() / denominator
