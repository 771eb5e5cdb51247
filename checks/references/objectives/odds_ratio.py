"""ORPO: the likelihood of preferred answers, and the odds by which they are likelier than the rejected ones.

    L = L_NLL(y_w) + λ · (1/n) Σ −log σ(log odds(y_w|x) − log odds(y_l|x))          odds(y|x) = P / (1 − P)

(https://arxiv.org/abs/2403.07691, equations 1 to 7). log P(y|x) is the *mean* over the answer's tokens (equation 1).
TRL's trainer takes L_NLL as the mean over the tokens of all preferred rows of a micro-batch, prompts included, and
averages both terms over the micro-batches, and so it is stated here: another split of the rows is another objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from checks.references.objectives.objective import Computed


def log_odds(mean_log_probs: torch.Tensor) -> torch.Tensor:
    """log(P / (1 − P)) of log P < 0, of any shape and its dtype.

    >>> log_odds(torch.tensor([0.75], dtype=torch.float64).log()).exp().tolist()
    [3.0]
    """
    # 1 − e^x loses its digits for x near 0; −expm1 does not (https://cran.r-project.org/package=Rmpfr, log1mexp-note).
    return mean_log_probs - torch.log(-torch.expm1(mean_log_probs))


def odds_ratio_losses(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """−log σ of the log odds ratio, (n,), of the answers' mean log-probabilities, (n,) each."""
    return softplus(-(log_odds(chosen) - log_odds(rejected)))


@dataclass(frozen=True)
class OddsRatio:
    """`answers`, `counted`: (B, S) bool a micro-batch, the positions that predict a token of an answer, and those that
    predict any; `weight`: λ.

    The first half of a micro-batch's rows are preferred over those of the second half, in order; all that is counted in
    them counts for the likelihood.
    """

    weight: float
    answers: tuple[torch.Tensor, ...]
    counted: tuple[torch.Tensor, ...]

    def __call__(self, group: Sequence[Computed]) -> torch.Tensor:
        likelihood: dict[int, list[torch.Tensor]] = {}
        means: dict[tuple[int, int], torch.Tensor] = {}
        for one in group:
            for (micro, row), span, losses in one.lay():
                answer = self.answers[micro][row, span.start : span.stop]
                means[micro, row] = -losses[answer].mean()
                if row < self.answers[micro].shape[0] // 2:
                    likelihood.setdefault(micro, []).append(losses[self.counted[micro][row, span.start : span.stop]])
        scalars = []
        for micro, parts in sorted(likelihood.items()):
            half = self.answers[micro].shape[0] // 2
            ordered = torch.stack([means[micro, row] for row in range(2 * half)])
            odds = odds_ratio_losses(ordered[:half], ordered[half:])
            scalars.append(torch.cat(parts).mean() + self.weight * odds.mean())
        return torch.stack(scalars).sum() / len(self.answers)
