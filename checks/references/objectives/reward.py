"""Reward modelling: −log σ of the margin by which an answer's score exceeds a worse one's, of centred scores.

    L = (1/n) Σ −log σ(r(x, y_w) − r(x, y_l)) + c · (r(x, y_w) + r(x, y_l))²

(https://arxiv.org/abs/2203.02155, equation 1, without its factor of 1/K over ranked answers, of which a pair has one;
the second term is that of https://arxiv.org/abs/2312.09244, section 2, of weight c; n: the pairs of the step). r is
what a linear head without bias makes of the last token's hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from checks.references.kept import IGNORED
from checks.references.objectives.objective import Computed


def reward_losses(chosen: torch.Tensor, rejected: torch.Tensor, *, centring: float) -> torch.Tensor:
    """The loss of each pair, (n,), of its scores, (n,) each.

    >>> zero = torch.zeros(1, dtype=torch.float64)
    >>> reward_losses(zero, zero, centring=0.1).exp().tolist()
    [2.0]
    """
    return softplus(-(chosen - rejected)) + centring * (chosen + rejected).square()


def score_losses(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(b, s) less the score at the position of each row that has one, 0 elsewhere; `scores`: (b, s, 1) of every one.

    In the place of token losses: `RewardMargin` reads them as such.
    """
    return torch.where(targets != IGNORED, -scores.squeeze(-1), torch.zeros_like(scores.squeeze(-1)))


@dataclass(frozen=True)
class RewardMargin:
    """`rows`: how many each micro-batch has; the first half is preferred over the second, in order."""

    centring: float
    rows: tuple[int, ...]

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor:
        scores: dict[tuple[int, int], torch.Tensor] = {}
        for one in group:
            for place, losses in zip(one.rows, one.token_losses, strict=True):
                scores[place] = -losses.sum()
        losses = []
        for micro in sorted({micro for micro, _ in scores}):
            ordered = torch.stack([scores[micro, row] for row in range(self.rows[micro])])
            losses.append(reward_losses(*ordered.chunk(2), centring=self.centring))
        return torch.cat(losses).sum() / (sum(self.rows) // 2)
