"""Which other objective a preference run's loss is: beta, reference model, reduction, or order of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from checks.diagnosis.signatures import Signature
from checks.references.objectives.preference import pair_losses
from checks.verdict import Pattern

LARGEST_FACTOR = 1e3
"""Of beta: what is searched for lies within so many times as much or as little as was asked."""
PLACES, BISECTIONS = 120, 60
"""Places between these at which a change of sign is looked for, and halvings of the stretch that has one."""


@dataclass(frozen=True)
class Answers:
    """One micro-batch, (rows,) float64 each: log π and log π_ref of its answers, and their numbers of tokens.

    `found`: the scalar that was back-propagated; `allowed`: how far it may lie from its definition.
    """

    policy: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor
    found: float
    allowed: float

    @property
    def pairs(self) -> int:
        return self.policy.numel() // 2

    @property
    def margins(self) -> torch.Tensor:
        """(pairs,) float64: by how much more the policy has gained on the preferred answer than on the rejected one."""
        return difference(self.policy - self.reference)


Change = Callable[[Answers], torch.Tensor]
"""The pairs' losses of a micro-batch under another objective."""


def difference(values: torch.Tensor) -> torch.Tensor:
    """(2n,) → (n,): the first half less the second."""
    first, second = values.chunk(2)
    return first - second


def expect(one: Answers, *, beta: float, pairs: int) -> float:
    """The micro-batch's share of the step's loss, of so many pairs."""
    return float(pair_losses(one.margins, beta=beta).sum()) / pairs


def read_preference_loss(
    answers: Sequence[Answers], *, beta: float, pairs: int, micro_batches: int
) -> Signature | None:
    """The objective that gives every micro-batch's scalar, None where none that is known does.

    `pairs`, `micro_batches`: of the whole step, of which `answers` may be a part.
    """
    for signature, change, factor in _list_objectives(beta=beta, pairs=pairs, micro_batches=micro_batches):
        if all(_fits(one, float(change(one).sum()) * factor / pairs, factor) for one in answers):
            return signature
    return _read_beta(answers, beta=beta, pairs=pairs) or _read_smoothing(answers, beta=beta, pairs=pairs)


def _fits(one: Answers, value: float, factor: float = 1.0) -> bool:
    return abs(one.found - value) <= 2.0 * max(factor, 1.0) * one.allowed


def _list_objectives(*, beta: float, pairs: int, micro_batches: int) -> Iterator[tuple[Signature, Change, float]]:
    def asked(one: Answers) -> torch.Tensor:
        return pair_losses(one.margins, beta=beta)

    yield (
        Signature(
            "the reference model is the policy itself: every pair's loss is log 2, as if the policy had gained nothing "
            "on the checkpoint, and its gradients are those of the first step",
            Pattern.STATE_TRANSFER,
            "reference model",
        ),
        lambda one: pair_losses(torch.zeros_like(one.margins), beta=beta),
        1.0,
    )
    yield (
        Signature(
            "there is no reference model: the margins are those of the policy's own log-probabilities",
            Pattern.OBJECTIVE_SCALE,
            "reference model",
        ),
        lambda one: pair_losses(difference(one.policy), beta=beta),
        1.0,
    )
    yield (
        Signature("the margin has the wrong sign: rejected answers are preferred", Pattern.OBJECTIVE_SCALE, "pairs"),
        lambda one: pair_losses(-one.margins, beta=beta),
        1.0,
    )
    yield (
        Signature(
            "log-probabilities are means over an answer's tokens, not sums: long answers lose weight",
            Pattern.SEQUENCE_LENGTH,
            "answer log-probabilities",
        ),
        lambda one: pair_losses(difference((one.policy - one.reference) / one.tokens), beta=beta),
        1.0,
    )
    if micro_batches > 1:
        yield (
            Signature(
                f"the loss is not divided over the accumulation: each micro-batch has {micro_batches} times its share",
                Pattern.OBJECTIVE_SCALE,
                "loss denominator",
            ),
            asked,
            float(micro_batches),
        )
    if pairs > 1:
        yield (
            Signature(
                f"the pairs' losses are added up and not averaged over the step's {pairs}",
                Pattern.OBJECTIVE_SCALE,
                "loss denominator",
            ),
            asked,
            float(pairs),
        )


def _read_beta(answers: Sequence[Answers], *, beta: float, pairs: int) -> Signature | None:
    """One factor of beta that gives every micro-batch's loss."""
    if len(answers) == 1:
        return None  # a single number fits a beta of its own making
    total = math.fsum(one.found for one in answers)

    def excess(factor: float) -> float:
        return math.fsum(expect(one, beta=beta * factor, pairs=pairs) for one in answers) - total

    for factor in _find_roots(excess):
        if all(_fits(one, expect(one, beta=beta * factor, pairs=pairs), factor) for one in answers):
            sentence = f"beta is {beta * factor:.4g} in the loss, asked {beta:g}: {factor:.4g} times"
            return Signature(sentence, Pattern.OBJECTIVE_SCALE, "beta")
    return None


def _read_smoothing(answers: Sequence[Answers], *, beta: float, pairs: int) -> Signature | None:
    """(1 − ε) L(margin) + ε L(−margin), as of preferences that are flipped with a probability ε."""
    if len(answers) == 1:
        return None
    total = math.fsum(one.found for one in answers)
    straight = math.fsum(expect(one, beta=beta, pairs=pairs) for one in answers)
    flipped = math.fsum(float(pair_losses(-one.margins, beta=beta).sum()) / pairs for one in answers)
    if flipped == straight:
        return None
    share = (total - straight) / (flipped - straight)
    if not 0.0 < share < 1.0:
        return None
    for one in answers:
        mixed = (1.0 - share) * pair_losses(one.margins, beta=beta) + share * pair_losses(-one.margins, beta=beta)
        if not _fits(one, float(mixed.sum()) / pairs):
            return None
    sentence = f"preferences are smoothed: {share:.3g} of each pair's loss is that of the pair the other way round"
    return Signature(sentence, Pattern.OBJECTIVE_SCALE, "label smoothing")


def _find_roots(function: Callable[[float], float]) -> Iterator[float]:
    """Where a function of a positive factor changes its sign, between 1 / LARGEST_FACTOR and LARGEST_FACTOR.

    A sum of −log σ(factor · margin) is convex in the factor, so it takes a value at two places at most.
    """
    places = [LARGEST_FACTOR ** (2.0 * place / PLACES - 1.0) for place in range(PLACES + 1)]
    values = [function(place) for place in places]
    for (low, before), (high, after) in pairwise(zip(places, values, strict=True)):
        if before * after > 0.0:
            continue
        for _ in range(BISECTIONS):
            middle = math.sqrt(low * high)
            if function(middle) * before > 0.0:
                low = middle
            else:
                high = middle
        yield math.sqrt(low * high)
