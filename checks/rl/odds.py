"""ORPO's loss of one captured step, and what else it might be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from checks.captures.capture import Capture
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.references.objectives.odds_ratio import log_odds, odds_ratio_losses
from checks.rl.reading import Alternative, LossReading, NoComparison, name_scaled, round_off
from checks.tolerance import MULTIPLES
from checks.verdict import Pattern


@dataclass(frozen=True)
class Side:
    """One micro-batch, (rows,) float64 each: mean and summed log-probabilities of the answers. `likelihood`: the mean
    loss over all tokens of the preferred rows; `answered`: over those of their answers; `tokens`: counted of them.
    """

    mean: torch.Tensor
    total: torch.Tensor
    likelihood: float
    answered: float
    tokens: int

    @property
    def odds(self) -> float:
        return float(odds_ratio_losses(*self.mean.chunk(2)).mean())


def read_odds_step(material: Material, capture: Capture, number: int) -> LossReading:
    """Raises NoComparison where the step's log-probabilities or scalars were not recorded."""
    batches, records = material.batches.get(number), capture.micro_batches(number)
    if batches is None:
        raise NoComparison(material.why_not(number))
    weight, count = material.spec.beta, len(batches)
    sides: dict[int, Side] = {}
    found, expected, allowed = {}, {}, {}
    wrong: Signature | None = None
    for index, (micro, record) in enumerate(zip(batches, records, strict=True)):
        losses, answers = micro.token_losses_seen, micro.answers
        if losses is None or answers is None or record.backward is None:
            raise NoComparison(
                f"micro-batch {index}: the log-probabilities, the labels or the scalar were not recorded"
            )
        if losses.shape[0] % 2 or not bool(answers.any(dim=1).all()):
            raise NoComparison(f"micro-batch {index}: its rows are no pairs of answers")
        half = losses.shape[0] // 2
        tokens = answers.sum(dim=1).double()
        total = -losses.masked_fill(~answers, 0.0).sum(dim=1)
        chosen = micro.counted[:half]
        side = Side(
            mean=total / tokens,
            total=total,
            likelihood=float(losses[:half][chosen].mean()),
            answered=float(losses[:half][answers[:half]].mean()),
            tokens=int(chosen.sum()),
        )
        sides[index] = side
        found[index] = record.backward
        expected[index] = (side.likelihood + weight * side.odds) / count
        epsilon = round_off(record.backward_dtype, material.spec.precision)
        slopes = 1.0 / -torch.expm1(side.mean)  # of log odds by the mean log-probability
        noise = 4.0 * epsilon * (side.likelihood + weight * float((slopes * (1.0 - side.mean)).mean()))
        allowed[index] = MULTIPLES[material.spec.precision] * noise / count
        counts = [call.counted for call in record.cross_entropy]
        if wrong is None and counts and counts[0] != side.tokens:
            wrong = _name_tokens(index, counts[0], side.tokens, int(answers[:half].sum()))
    slope = weight * sum(side.odds for side in sides.values()) / count
    limits = {"beta": sum(allowed.values()) / slope} if slope > 0.0 else {}
    return LossReading(
        step=number,
        found=found,
        expected=expected,
        allowed=allowed,
        limits=limits,
        alternatives=list_alternatives(sides, expected, found, weight=weight, count=count),
        described=f"{sum(side.mean.numel() for side in sides.values()) // 2} pairs",
        rows=_list_rows(number, sides),
        wrong=wrong,
    )


def _name_tokens(index: int, found: int, tokens: int, answered: int) -> Signature:
    what = "its preferred rows have"
    if found == answered:
        sentence = f"the likelihood counts the {found} tokens of the answers alone in micro-batch {index}"
        return Signature(f"{sentence}, and {what} {tokens} with their prompts", Pattern.LOSS_MASK, "labels")
    more = "padding is counted" if found > tokens else "tokens are left out"
    sentence = f"the likelihood counts {found} tokens in micro-batch {index}, and {what} {tokens}: {more}"
    return Signature(sentence, Pattern.LOSS_MASK, "labels")


def list_alternatives(
    sides: Mapping[int, Side],
    expected: Mapping[int, float],
    found: Mapping[int, float],
    *,
    weight: float,
    count: int,
) -> Sequence[Alternative]:
    """Other objectives of the same pairs, the plainest first."""

    def make(sentence: str, where: str, terms: Mapping[int, float], pattern: Pattern = Pattern.OBJECTIVE_SCALE) -> Any:
        scalars = {index: (side.likelihood + terms[index]) / count for index, side in sides.items()}
        return Alternative(Signature(sentence, pattern, where), scalars)

    def odds(chosen: torch.Tensor, rejected: torch.Tensor) -> float:
        return weight * float(torch.nn.functional.softplus(-(chosen - rejected)).mean())

    pairs = sum(side.mean.numel() for side in sides.values()) // 2
    alternatives = [
        make(
            "the odds are of an answer's summed log-probability, not of its mean over tokens: long answers lose weight",
            "answer log-probabilities",
            {index: odds(*log_odds(side.total).chunk(2)) for index, side in sides.items()},
            Pattern.SEQUENCE_LENGTH,
        ),
        make(
            "the ratio is of likelihoods, not of odds: 1 − P is left out",
            "odds ratio",
            {index: odds(*side.mean.chunk(2)) for index, side in sides.items()},
        ),
        make(
            "the odds ratio has the wrong sign: rejected answers are preferred",
            "pairs",
            {index: odds(*reversed(log_odds(side.mean).chunk(2))) for index, side in sides.items()},
        ),
        make(
            "the odds ratio's loss is subtracted from the likelihood and not added to it",
            "odds ratio",
            {index: -weight * side.odds for index, side in sides.items()},
        ),
        make("the odds ratio is left out: the likelihood is all", "odds ratio", dict.fromkeys(sides, 0.0)),
        make(
            "the odds ratio's losses are added up over the pairs and not averaged",
            "loss denominator",
            {index: weight * side.odds * side.mean.numel() / 2 for index, side in sides.items()},
        ),
        Alternative(
            Signature("the likelihood is left out: the odds ratio is all", Pattern.OBJECTIVE_SCALE, "likelihood"),
            {index: weight * side.odds / count for index, side in sides.items()},
        ),
        *name_scaled(expected, micro_batches=count, units="pairs", count=pairs),
    ]
    return [*alternatives, *_read_weight(sides, found, weight=weight, count=count)]


def _read_weight(
    sides: Mapping[int, Side], found: Mapping[int, float], *, weight: float, count: int
) -> Sequence[Alternative]:
    """One other weight of the odds ratio for every micro-batch; one scalar alone fits any."""
    if len(sides) < 2:
        return []
    terms = sum(side.odds for side in sides.values())
    other = (sum(found.values()) * count - sum(side.likelihood for side in sides.values())) / terms
    sentence = f"beta is {other:.4g} in the loss, asked {weight:g}: {other / weight:.4g} times"
    scalars = {index: (side.likelihood + other * side.odds) / count for index, side in sides.items()}
    return [Alternative(Signature(sentence, Pattern.OBJECTIVE_SCALE, "beta"), scalars)]


def _list_rows(number: int, sides: Mapping[int, Side]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for index, side in sides.items():
        half = side.mean.numel() // 2
        for pair in range(half):
            chosen, rejected = side.mean[pair], side.mean[half + pair]
            rows.append(
                {
                    "step": number,
                    "micro-batch": index,
                    "pair": pair,
                    "mean log π, chosen": float(chosen),
                    "mean log π, rejected": float(rejected),
                    "log odds ratio": float(log_odds(chosen) - log_odds(rejected)),
                    "loss": float(odds_ratio_losses(chosen[None], rejected[None])),
                }
            )
    return rows
