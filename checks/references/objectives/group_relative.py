"""GRPO and what was published after it: a policy's samples of one prompt are held against each other.

    L = Σ_i Σ_t w_it · [−min(ρ_it A_i, clip(ρ_it, 1 − ε_low, 1 + ε_high) A_i) + β · KL_it]

over the samples i of the step's groups and their tokens t. The variants differ in ρ, in ε, in the weights w and in
whether the advantages are divided by their group's standard deviation (see VARIANTS; N: samples of the step, M:
micro-batches, |o|: tokens of a sample, T: tokens of the step, L: the longest sample that may be generated).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from checks.references.objectives.objective import Computed
from checks.references.objectives.ratios import clipped_losses, estimate_kl, sequence_ratios, token_ratios

Level = Literal["token", "sequence"]
Reduction = Literal["sequence_mean", "token_mean", "micro_token_mean", "constant"]


@dataclass(frozen=True)
class GroupVariant:
    """`level`: of the ratio; `low`, `high`: the clip; `reduction`: see `weigh`; `scaled`: advantages over their std."""

    level: Level
    low: float
    high: float
    reduction: Reduction
    scaled: bool


VARIANTS: Mapping[str, GroupVariant] = {
    # https://arxiv.org/abs/2402.03300, equation 3: w = 1 / (N |o|).
    "grpo": GroupVariant("token", 0.2, 0.2, "sequence_mean", True),
    # https://arxiv.org/abs/2503.20783, section 3.2: neither 1/|o| nor 1/std; w = 1 / (N L).
    "dr_grpo": GroupVariant("token", 0.2, 0.2, "constant", False),
    # https://arxiv.org/abs/2503.14476, equations 8 and 12: clip-higher, w = 1 / T.
    "dapo": GroupVariant("token", 0.2, 0.28, "token_mean", True),
    # The mean over the tokens of each micro-batch, as TRL's `loss_type="bnpo"` says: w = 1 / (M T_micro).
    "bnpo": GroupVariant("token", 0.2, 0.2, "micro_token_mean", True),
    # https://arxiv.org/abs/2507.18071, equations 5 and 7, and the clip of its section 5.1; w = 1 / (N |o|).
    "gspo": GroupVariant("sequence", 3e-4, 4e-4, "sequence_mean", True),
}

PROXIMAL: Mapping[str, GroupVariant] = {
    # https://arxiv.org/abs/1707.06347, equation 7; the mean over the tokens of the batch: w = 1 / T.
    "ppo": GroupVariant("token", 0.2, 0.2, "token_mean", False),
    # https://arxiv.org/abs/2501.03262, section 3: PPO's loss on advantages of its own.
    "reinforce_plus_plus": GroupVariant("token", 0.2, 0.2, "token_mean", False),
}
"""Objectives of the same form whose tokens have advantages of their own, and which penalise within the rewards."""


@dataclass(frozen=True)
class Samples:
    """What one micro-batch's loss is given. `mask`: (B, S) bool, the positions that predict a sampled token;
    `advantages`: (B,), or (B, S) where tokens have their own; `old`, `reference`: (B, S) log-probabilities under the
    policy that sampled and under the reference model, None where the policy is as it sampled, or where there is no
    penalty.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None

    @property
    def token_advantages(self) -> torch.Tensor:
        """(B, S)."""
        return self.advantages if self.advantages.dim() == 2 else self.advantages[:, None].expand(self.mask.shape)


def weigh(samples: Sequence[Samples], *, reduction: Reduction, max_tokens: int) -> tuple[torch.Tensor, ...]:
    """w of each row's tokens, (B,) float64 a micro-batch.

    The mean over samples, and the constant, are taken in each micro-batch and averaged over these, as frameworks do:
    over micro-batches of one size it is the mean over the step.
    """
    counts = [one.mask.sum(dim=1).double() for one in samples]
    micro_batches, total = len(samples), max(sum(float(count.sum()) for count in counts), 1.0)
    weights = []
    for count in counts:
        rows = count.numel() * micro_batches
        if reduction == "sequence_mean":
            weights.append(1.0 / (rows * count.clamp(min=1.0)))
        elif reduction == "constant":
            weights.append(torch.full_like(count, 1.0 / (rows * max_tokens)))
        elif reduction == "token_mean":
            weights.append(torch.full_like(count, 1.0 / total))
        else:
            weights.append(torch.full_like(count, 1.0 / (micro_batches * max(float(count.sum()), 1.0))))
    return tuple(weights)


def token_terms(
    policy: torch.Tensor,
    *,
    old: torch.Tensor | None,
    reference: torch.Tensor | None,
    advantage: torch.Tensor,
    variant: GroupVariant,
    beta: float,
) -> torch.Tensor:
    """What each token of one sample is minimised by, (tokens,): the clipped ratio and the penalty.

    `advantage`: (), or (tokens,).
    """
    before = policy.detach() if old is None else old
    if variant.level == "token":
        ratios = token_ratios(policy, before)
    else:
        whole = torch.ones_like(policy, dtype=torch.bool)[None]
        ratios = sequence_ratios(policy[None], before[None], whole)[0].expand_as(policy)
    terms = clipped_losses(ratios, advantage, low=variant.low, high=variant.high)
    return terms if reference is None or beta == 0.0 else terms + beta * estimate_kl(policy, reference)


@dataclass(frozen=True)
class GroupRelative:
    """`samples`: what each micro-batch's loss is given; `max_tokens`: L."""

    variant: GroupVariant
    beta: float
    samples: tuple[Samples, ...]
    max_tokens: int

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor:
        weights = weigh(self.samples, reduction=self.variant.reduction, max_tokens=self.max_tokens)
        parts: list[torch.Tensor] = []
        for one in group:
            for (micro, row), span, losses in one.lay():
                given = self.samples[micro]
                kept = given.mask[row, span.start : span.stop]
                policy = -losses[kept]

                def pick(values: torch.Tensor | None) -> torch.Tensor | None:
                    return None if values is None else values[row, span.start : span.stop][kept].to(policy)  # noqa: B023

                terms = token_terms(
                    policy,
                    old=pick(given.old),
                    reference=pick(given.reference),
                    advantage=given.token_advantages[row, span.start : span.stop][kept].to(policy),
                    variant=self.variant,
                    beta=self.beta,
                )
                parts.append(terms.sum() * float(weights[micro][row]))
        return torch.stack(parts).sum()
