"""What policies of two moments say of the same tokens: ratios, clipping, and the penalty of leaving a third one.

All tensors are (n,) of one sequence, or (rows, tokens) with a mask; log-probabilities are natural logarithms.
"""

from __future__ import annotations

import torch


def token_ratios(policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """π(y_t) / π_old(y_t) of each token (https://arxiv.org/abs/1707.06347, section 3)."""
    return torch.exp(policy - old)


def sequence_ratios(policy: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """GSPO's s = (π(y) / π_old(y))^(1/|y|) of each row (https://arxiv.org/abs/2507.18071, equation 7).

    policy, old: (rows, tokens); mask: (rows, tokens) bool → (rows, 1). A row without a token has 1.
    """
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.exp((policy - old).masked_fill(~mask, 0.0).sum(dim=1, keepdim=True) / lengths)


def clipped_losses(ratios: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float) -> torch.Tensor:
    """−min(ρ A, clip(ρ, 1 − low, 1 + high) A), elementwise (https://arxiv.org/abs/1707.06347, equation 7).

    >>> clipped_losses(torch.tensor([1.5, 1.5]), torch.tensor([1.0, -1.0]), low=0.2, high=0.2).tolist()
    [-1.2000000476837158, 1.5]
    """
    return -torch.minimum(ratios * advantages, ratios.clamp(1.0 - low, 1.0 + high) * advantages)


def is_clipped(ratios: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float) -> torch.Tensor:
    """Whether the clip is what is minimised, so that no gradient flows: elementwise bool."""
    return ((ratios > 1.0 + high) & (advantages > 0)) | ((ratios < 1.0 - low) & (advantages < 0))


def estimate_kl(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """π_ref/π − log(π_ref/π) − 1 of each token: unbiased for KL(π‖π_ref) under π, and never negative.

    GRPO's estimator (https://arxiv.org/abs/2402.03300, equation 4), k3 of http://joschu.net/blog/kl-approx.html.

    >>> estimate_kl(torch.tensor([0.0]), torch.tensor([0.0])).item()
    0.0
    """
    gap = reference - policy
    return torch.expm1(gap) - gap
