"""KTO: answers that are desirable or not, valued by what the policy has gained on its reference.

    L = (1/n) Σ λ_y − v(x, y),   v = λ_D σ(β (r − z)) of a desirable answer,   λ_U σ(β (z − r)) of an undesirable one
    r = log π(y|x) − log π_ref(y|x),   z = max(0, (1/m) Σ log π(y'|x) − log π_ref(y'|x))

(https://arxiv.org/abs/2402.01306, equation 7). The reference point z is KL(π‖π_ref), which the paper estimates from
answers y' of other prompts in the same batch (section 4): it is a quantity of the micro-batch, no gradient flows
through it, and another split of the rows gives another one. log π(y|x) is the sum over an answer's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from checks.references.objectives.objective import Computed


def estimate_reference_point(gains: torch.Tensor) -> torch.Tensor:
    """z of the gains log π(y'|x) − log π_ref(y'|x) of mismatched answers, (m,) → ().

    >>> estimate_reference_point(torch.tensor([1.0, -4.0])).item()
    0.0
    """
    return gains.mean().clamp(min=0.0).detach()


def value_losses(
    gains: torch.Tensor,
    desirable: torch.Tensor,
    *,
    beta: float,
    reference_point: torch.Tensor | float,
    weights: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    """λ_y − v of each answer, (n,) of the gains' dtype; `desirable`: (n,) bool; `weights`: λ_D and λ_U."""
    ahead = beta * (gains - reference_point)
    return torch.where(desirable, weights[0] * torch.sigmoid(-ahead), weights[1] * torch.sigmoid(ahead))


@dataclass(frozen=True)
class Prospect:
    """`reference`: (micro-batch, row) → log π_ref of its answer; `points`: the micro-batches' z; `desirable`: (rows,)
    bool a micro-batch.
    """

    beta: float
    reference: Mapping[tuple[int, int], torch.Tensor]
    points: tuple[torch.Tensor, ...]
    desirable: tuple[torch.Tensor, ...]

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor:
        gains: dict[tuple[int, int], torch.Tensor] = {}
        for one in group:
            for place, losses in zip(one.rows, one.token_losses, strict=True):
                policy = -losses.sum()
                gains[place] = policy - self.reference[place].to(policy)
        scalars = []
        for micro in sorted({micro for micro, _ in gains}):
            rows = torch.stack([gains[micro, row] for row in range(self.desirable[micro].numel())])
            point = self.points[micro].to(rows)
            scalars.append(value_losses(rows, self.desirable[micro], beta=self.beta, reference_point=point).mean())
        return torch.stack(scalars).sum() / len(self.desirable)
