"""PPO, and REINFORCE++ on its advantages: the clipped ratio, and the value function's clipped error.

    L = (1/T) Σ −min(ρ A, clip(ρ, 1 − ε, 1 + ε) A),   ρ = π / π_old

over the T tokens of the batch (https://arxiv.org/abs/1707.06347, equation 7); the advantages are generalised
(`advantages.generalised_advantages`) for PPO, and returns that are normalised over the batch for REINFORCE++
(https://arxiv.org/abs/2501.03262, section 3), which has no value function.
"""

from __future__ import annotations

import torch

from checks.references.objectives.ratios import clipped_losses, token_ratios

CLIP = 0.2
"""https://arxiv.org/abs/1707.06347, section 6.1, table 1: the best of those tried."""


def policy_loss(
    policy: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, *, clip: float = CLIP
) -> torch.Tensor:
    """The mean over the masked tokens; (rows, tokens) each → ()."""
    losses = clipped_losses(token_ratios(policy, old), advantages, low=clip, high=clip)
    return losses.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, *, clip: float = CLIP
) -> torch.Tensor:
    """½ mean max((V − R)², (clip(V, V_old − ε, V_old + ε) − R)²), as OpenAI's baselines have it
    (https://github.com/openai/baselines, `ppo2/model.py`). (rows, tokens) each → ().
    """
    near = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
    errors = torch.maximum((values - returns).square(), (near - returns).square())
    return 0.5 * errors.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
