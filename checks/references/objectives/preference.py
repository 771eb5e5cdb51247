"""Direct preference optimisation: −log σ of beta times the margin by which an answer gains on a worse one.

    L = −(1/n) Σ log σ(β · [(log π(y_w|x) − log π_ref(y_w|x)) − (log π(y_l|x) − log π_ref(y_l|x))])

(https://arxiv.org/abs/2305.18290, equation 7; n: the pairs of the step). log π(y|x) is the sum over an answer's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from checks.references.objectives.objective import Computed


@dataclass(frozen=True)
class PreferenceMargin:
    """`reference`: (micro-batch, row) → log π_ref of its answer; `rows`: how many each micro-batch has.

    The first half of a micro-batch's rows are preferred over those of the second half, in order.
    """

    beta: float
    reference: Mapping[tuple[int, int], torch.Tensor]
    rows: tuple[int, ...]

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor:
        policy: dict[tuple[int, int], torch.Tensor] = {}
        for one in group:
            for place, losses in zip(one.rows, one.token_losses, strict=True):
                policy[place] = policy[place] - losses.sum() if place in policy else -losses.sum()
        pairs = sum(self.rows) // 2
        losses = []
        for micro in sorted({micro for micro, _ in policy}):
            half = self.rows[micro] // 2
            gains = [policy[micro, row] - self.reference[micro, row].to(policy[micro, row]) for row in range(2 * half)]
            losses.append(pair_losses(torch.stack(gains[:half]) - torch.stack(gains[half:]), beta=self.beta))
        return torch.cat(losses).sum() / pairs


def pair_losses(margins: torch.Tensor, *, beta: float) -> torch.Tensor:
    """−log σ(beta · margin) of each pair, (n,) of the margins' dtype.

    >>> pair_losses(torch.zeros(1, dtype=torch.float64), beta=0.1).exp().tolist()
    [2.0]
    """
    return softplus(-beta * margins)


def answer_log_probs(token_losses: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """log π of each row's answer: less its counted token losses. Both (rows, positions) → (rows,) float64."""
    return -token_losses.double().masked_fill(~counted, 0.0).sum(dim=1)
