"""The loss of a reward model at one captured step, and what else it might be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from checks.captures.capture import Capture
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.references.batch import MicroBatch
from checks.references.objectives.reward import reward_losses
from checks.rl.prospects import find_labels
from checks.rl.reading import Alternative, LossReading, NoComparison, name_scaled, round_off
from checks.tolerance import MULTIPLES
from checks.verdict import Pattern

Pairs = tuple[torch.Tensor, torch.Tensor]
"""scores of the preferred answers and of the rejected ones, (n,) float64 each"""


def read_reward_step(material: Material, capture: Capture, number: int) -> LossReading:
    """Raises NoComparison where the step's scores or scalars were not recorded."""
    batches, records = material.batches.get(number), capture.micro_batches(number)
    if batches is None:
        raise NoComparison(material.why_not(number))
    if len({micro.input_ids.shape[0] for micro in batches}) > 1:
        raise NoComparison("micro-batches hold other numbers of pairs; a mean of their means is not that of the step")
    centring, count = material.spec.beta, len(batches)
    rows: dict[int, Pairs] = {}
    found, expected, allowed = {}, {}, {}
    wrong: Signature | None = None
    for index, (micro, record) in enumerate(zip(batches, records, strict=True)):
        if not micro.scored or micro.token_losses_seen is None or record.backward is None:
            raise NoComparison(f"micro-batch {index}: the scores of its rows or the scalar were not recorded")
        if micro.input_ids.shape[0] % 2:
            raise NoComparison(f"micro-batch {index}: its rows are no pairs of answers")
        chosen, rejected = rows[index] = _split(-micro.token_losses_seen.sum(dim=1))
        wrong = wrong or _name_swapped(micro, material, number, index)
        found[index] = record.backward
        expected[index] = float(reward_losses(chosen, rejected, centring=centring).mean()) / count
        epsilon = round_off(record.backward_dtype, material.spec.precision)
        # Each score is rounded as it is subtracted, added and squared; the slopes are 1 and 2c|sum|.
        sizes = chosen.abs() + rejected.abs()
        noise = epsilon * (2.0 + 2.0 * sizes + 6.0 * centring * sizes.square())
        allowed[index] = MULTIPLES[material.spec.precision] * float(noise.mean()) / count
    return LossReading(
        step=number,
        found=found,
        expected=expected,
        allowed=allowed,
        limits=_find_limits(rows, allowed, centring=centring, count=count),
        alternatives=list_alternatives(rows, expected, centring=centring, count=count),
        described=f"{sum(chosen.numel() for chosen, _ in rows.values())} pairs",
        rows=_list_rows(number, rows, centring=centring),
        wrong=wrong,
    )


def _name_swapped(micro: MicroBatch, material: Material, number: int, index: int) -> Signature | None:
    """What the data say of a micro-batch whose first half is not the preferred answers; None where they agree."""
    due = None if material.dataset is None else find_labels(micro, material.dataset)
    if due is None:
        return None
    first, second = due.chunk(2)
    count = int((~first).sum() + second.sum())
    if not count:
        return None
    return Signature(
        f"{count} of {due.numel()} rows in micro-batch {index} of step {number} stand on the other side: rejected "
        "answers are scored as preferred, or preferred ones as rejected",
        Pattern.LOSS_MASK,
        "pairs",
    )


def _split(scores: torch.Tensor) -> Pairs:
    chosen, rejected = scores.chunk(2)
    return chosen, rejected


def _find_limits(
    rows: Mapping[int, Pairs], allowed: Mapping[int, float], *, centring: float, count: int
) -> dict[str, float]:
    """The smallest relative error of the margins, and of the centring's weight, that would have shown."""
    slopes = {"margins": 0.0, "beta": 0.0}
    for chosen, rejected in rows.values():
        margins = chosen - rejected
        slopes["margins"] += abs(float((margins * torch.sigmoid(-margins)).mean())) / count
        slopes["beta"] += centring * float((chosen + rejected).square().mean()) / count
    room = sum(allowed.values())
    return {name: room / slope for name, slope in slopes.items() if slope > 0.0}


def list_alternatives(
    rows: Mapping[int, Pairs], expected: Mapping[int, float], *, centring: float, count: int
) -> Sequence[Alternative]:
    """Other objectives of the same scores, the plainest first."""

    def make(
        sentence: str, where: str, losses: Mapping[int, torch.Tensor], pattern: Pattern = Pattern.OBJECTIVE_SCALE
    ) -> Alternative:
        scalars = {index: float(each.mean()) / count for index, each in losses.items()}
        return Alternative(Signature(sentence, pattern, where), scalars)

    pairs = sum(chosen.numel() for chosen, _ in rows.values())
    return [
        make(
            "the margin has the wrong sign: rejected answers are scored above the preferred ones",
            "pairs",
            {index: reward_losses(rejected, chosen, centring=centring) for index, (chosen, rejected) in rows.items()},
            Pattern.LOSS_MASK,
        ),
        make(
            "the term that centres the scores is left out",
            "centring",
            {index: reward_losses(chosen, rejected, centring=0.0) for index, (chosen, rejected) in rows.items()},
        ),
        make(
            "the centring is of the mean of a pair's scores, not of their sum: a quarter of its weight",
            "centring",
            {
                index: reward_losses(chosen, rejected, centring=centring / 4)
                for index, (chosen, rejected) in rows.items()
            },
        ),
        make(
            "the scores are centred by the square of their margin, not of their sum",
            "centring",
            {
                index: reward_losses(chosen, rejected, centring=0.0) + centring * (chosen - rejected).square()
                for index, (chosen, rejected) in rows.items()
            },
        ),
        make(
            "preferred answers are scored against zero: the rejected ones do not count",
            "pairs",
            {index: reward_losses(chosen, 0 * chosen, centring=centring) for index, (chosen, _) in rows.items()},
        ),
        *name_scaled(expected, micro_batches=count, units="pairs", count=pairs),
    ]


def _list_rows(number: int, rows: Mapping[int, Pairs], *, centring: float) -> list[dict[str, object]]:
    return [
        {
            "step": number,
            "micro-batch": index,
            "pair": pair,
            "score, chosen": float(chosen[pair]),
            "score, rejected": float(rejected[pair]),
            "loss": float(reward_losses(chosen[pair], rejected[pair], centring=centring)),
        }
        for index, (chosen, rejected) in rows.items()
        for pair in range(chosen.numel())
    ]
