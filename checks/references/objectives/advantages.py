"""How much better a sample, or a token, was than expected: group-relative, generalised, and normalised advantages."""

from __future__ import annotations

from typing import Literal

import torch

Scale = Literal["group", "batch", "none"]

DISCOUNT, TRACE = 1.0, 0.95
"""γ and λ of ppo's advantages: no discount within an answer; λ as in https://arxiv.org/abs/1506.02438, section 6."""

GROUP_EPSILON = 1e-4
"""What TRL and ms-swift add to a group's standard deviation (`trl/trainer/grpo_trainer.py`); the paper adds nothing."""


def group_advantages(
    rewards: torch.Tensor, *, scale: Scale = "group", ddof: int = 1, epsilon: float = GROUP_EPSILON
) -> torch.Tensor:
    """(r − mean) / (std + ε) over the samples of one prompt: (groups, samples) float64 of the same shape.

    https://arxiv.org/abs/2402.03300, section 4.1.2. `scale`: by the group's standard deviation, by that of all rewards,
    or not at all (https://arxiv.org/abs/2503.20783). `ddof`: 1, the sample's, is what torch.std and so the frameworks
    take; the paper does not say. A group whose rewards are all equal has advantages of 0.
    """
    values = rewards.double()
    centred = values - values.mean(dim=1, keepdim=True)
    if scale == "none":
        return centred
    if scale == "group":
        return centred / (_deviation(values, ddof)[:, None] + epsilon)
    return centred / (_deviation(values.flatten()[None], ddof) + epsilon)


def _deviation(values: torch.Tensor, ddof: int) -> torch.Tensor:
    """(n, m) → (n,); a single value has none."""
    if values.shape[1] <= ddof:
        return torch.zeros(values.shape[0], dtype=values.dtype)
    return values.std(dim=1, correction=ddof)


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE: A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t, and the returns A + V. (rows, tokens) float64 each.

    https://arxiv.org/abs/1506.02438, equation 16. V after a row's last token is 0. `mask`: (rows, tokens) bool; what it
    leaves out has an advantage of 0, and the row goes on across it.
    """
    rewards, values = rewards.double(), values.double()
    advantages = torch.zeros_like(values)
    following, ahead = torch.zeros(values.shape[0], dtype=torch.float64), torch.zeros(values.shape[0]).double()
    for token in reversed(range(values.shape[1])):
        kept = mask[:, token]
        delta = rewards[:, token] + gamma * ahead - values[:, token]
        here = delta + gamma * lam * following
        advantages[:, token] = torch.where(kept, here, advantages[:, token])
        following, ahead = torch.where(kept, here, following), torch.where(kept, values[:, token], ahead)
    return advantages, (advantages + values).masked_fill(~mask, 0.0)


def token_returns(rewards: torch.Tensor, kl: torch.Tensor, mask: torch.Tensor, *, beta: float) -> torch.Tensor:
    """REINFORCE++'s advantage of each token before it is normalised: the sample's reward less β times the KL that is
    still to come. rewards: (rows,); kl, mask: (rows, tokens) → (rows, tokens) float64.

    https://arxiv.org/abs/2501.03262, section 3 (γ = 1).
    """
    penalty = (beta * kl.double()).masked_fill(~mask, 0.0)
    rest = penalty.flip(1).cumsum(1).flip(1)
    return (rewards.double()[:, None] - rest).masked_fill(~mask, 0.0)


def normalise_over_batch(
    advantages: torch.Tensor, mask: torch.Tensor, *, epsilon: float = 1e-8, ddof: int = 0
) -> torch.Tensor:
    """(A − mean) / std over all tokens of the *global* batch (https://arxiv.org/abs/2501.03262, section 3).

    (rows, tokens) float64; the variance is the sum of squares over n − `ddof` tokens, at least `epsilon`; the paper
    does not say which. Over a part of the batch, such as the rows of one rank, it is something else.
    """
    kept = advantages.double()[mask]
    if not kept.numel():
        return torch.zeros_like(advantages, dtype=torch.float64)
    variance = (kept - kept.mean()).square().sum() / max(kept.numel() - ddof, 1)
    return ((advantages.double() - kept.mean()) * torch.rsqrt(variance.clamp(min=epsilon))).masked_fill(~mask, 0.0)
