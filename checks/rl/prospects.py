"""KTO's loss of one captured step, the labels that its rows should have, and what else the loss might be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.diagnosis.signatures import Signature
from checks.material import Material
from checks.references.batch import MicroBatch
from checks.references.dataset import Dataset
from checks.references.objectives.preference import answer_log_probs
from checks.references.objectives.prospect import value_losses
from checks.rl.reading import Alternative, LossReading, NoComparison, name_scaled, round_off
from checks.tolerance import MULTIPLES
from checks.verdict import Pattern

STEEPEST = 0.25
"""The largest slope of a sigmoid."""

FACTORS = (0.5, 2.0)
"""Of beta: those that frameworks are known to differ by."""


@dataclass(frozen=True)
class Gains:
    """One micro-batch, (rows,) each: log π and log π_ref of its answers in float64, their numbers of tokens, and
    whether they are desirable; `point`: its reference point.
    """

    policy: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor
    desirable: torch.Tensor
    point: float

    @property
    def gains(self) -> torch.Tensor:
        return self.policy - self.reference

    def value(self, gains: torch.Tensor, *, beta: float, point: float | None = None) -> float:
        """The mean over the rows, of other gains or of another reference point."""
        z = self.point if point is None else point
        return float(value_losses(gains, self.desirable, beta=beta, reference_point=z).mean())


def read_prospect_step(material: Material, capture: Capture, number: int) -> LossReading:
    """Raises NoComparison where the step's answers, labels, reference points or scalars are not known."""
    batches, initial = material.batches.get(number), material.answers.get(number)
    points = material.reference_points.get(number)
    if batches is None or initial is None or points is None:
        raise NoComparison(material.no_answers.get(number) or material.why_not(number))
    beta, count = material.spec.beta, len(batches)
    rows: dict[int, Gains] = {}
    found, expected, allowed = {}, {}, {}
    wrong: Signature | None = None
    left_out = 0
    for index, (micro, record) in enumerate(zip(batches, capture.micro_batches(number), strict=True)):
        labels = micro.given.get("label")
        if micro.token_losses_seen is None or record.backward is None or labels is None:
            raise NoComparison(
                f"micro-batch {index}: the log-probabilities, the labels or the scalar were not recorded"
            )
        if bool(initial.undecided[index].any()):
            left_out += 1
            continue
        desirable = labels.bool()
        due = None if material.dataset is None else find_labels(micro, material.dataset)
        if wrong is None and due is not None and not torch.equal(due, desirable):
            wrong = _name_labels(number, index, due != desirable)
        one = Gains(
            policy=answer_log_probs(micro.token_losses_seen, micro.counted),
            reference=initial.log_probs[index],
            tokens=micro.counted.sum(dim=1).double(),
            desirable=desirable,
            point=points.values[index],
        )
        rows[index] = one
        found[index] = record.backward
        expected[index] = one.value(one.gains, beta=beta) / count
        epsilon = round_off(record.backward_dtype, material.spec.precision)
        sizes = one.policy.abs() + one.reference.abs() + 1.0
        noise = (initial.noise[index] + 2.0 * epsilon * sizes).mean() + points.noise[index]
        floor = beta * STEEPEST * (float(noise) + epsilon * float(sizes.mean())) + 4.0 * epsilon
        allowed[index] = MULTIPLES[material.spec.precision] * floor / count
    if not rows:
        raise NoComparison("every micro-batch holds a token whose expert the run's precision does not decide")
    step = beta * 1e-3
    moved = [abs(one.value(one.gains, beta=beta + step) - one.value(one.gains, beta=beta)) for one in rows.values()]
    slope = sum(moved) / count / 1e-3
    return LossReading(
        step=number,
        found=found,
        expected=expected,
        allowed=allowed,
        limits={"beta": sum(allowed.values()) / slope} if slope > 0.0 else {},
        alternatives=list_alternatives(rows, expected, beta=beta, count=count),
        described=f"{sum(one.policy.numel() for one in rows.values())} answers",
        rows=_list_rows(number, rows, beta=beta),
        wrong=wrong,
        left_out=left_out,
        extra={"reference_points": list(points.values)},
    )


def find_labels(micro: MicroBatch, dataset: Dataset) -> torch.Tensor | None:
    """(rows,) bool: whether each row is a preferred answer of the data; None where a row is none, or is both."""
    owners: dict[tuple[int, ...], set[bool]] = {}
    for index in range(len(dataset.documents)):
        owners.setdefault(dataset.cut(index), set()).add(index % 2 == 0)
    found: list[bool] = []
    for document in sorted(micro.documents, key=lambda one: one.row):
        ids = tuple(micro.input_ids[document.row, document.start : document.stop].tolist())
        kinds = owners.get(ids, set())
        if len(kinds) != 1:
            return None
        found.extend(kinds)
    return torch.tensor(found)


def _name_labels(number: int, index: int, differs: torch.Tensor) -> Signature:
    count, row = int(differs.sum()), int(differs.nonzero()[0])
    return Signature(
        f"{count} of {differs.numel()} answers in micro-batch {index} of step {number} have the other label, row {row} "
        "first: preferred answers are trained as undesirable, or rejected ones as desirable",
        Pattern.LOSS_MASK,
        "label",
    )


def list_alternatives(
    rows: Mapping[int, Gains], expected: Mapping[int, float], *, beta: float, count: int
) -> Sequence[Alternative]:
    """Other objectives of the same answers, the plainest first."""

    def make(
        sentence: str, where: str, values: Mapping[int, float], pattern: Pattern = Pattern.OBJECTIVE_SCALE
    ) -> Alternative:
        return Alternative(Signature(sentence, pattern, where), {index: each / count for index, each in values.items()})

    total = sum(one.policy.numel() for one in rows.values())
    return [
        make(
            "the reference model is the policy itself: gains and reference point are zero, as in the first step",
            "reference model",
            {i: one.value(torch.zeros_like(one.gains), beta=beta, point=0.0) for i, one in rows.items()},
            Pattern.STATE_TRANSFER,
        ),
        make(
            "the labels are the other way round: preferred answers are made less likely",
            "label",
            {
                i: float(value_losses(one.gains, ~one.desirable, beta=beta, reference_point=one.point).mean())
                for i, one in rows.items()
            },
            Pattern.LOSS_MASK,
        ),
        make(
            "the reference point is left out: gains are held against zero",
            "reference point",
            {i: one.value(one.gains, beta=beta, point=0.0) for i, one in rows.items()},
        ),
        make(
            "the reference point is that of the answers themselves, not of mismatched ones",
            "reference point",
            {i: one.value(one.gains, beta=beta, point=max(0.0, float(one.gains.mean()))) for i, one in rows.items()},
        ),
        make(
            "there is no reference model: the policy's own log-probabilities are valued",
            "reference model",
            {i: one.value(one.policy, beta=beta) for i, one in rows.items()},
        ),
        make(
            "log-probabilities are means over an answer's tokens, not sums",
            "answer log-probabilities",
            {i: one.value(one.gains / one.tokens, beta=beta) for i, one in rows.items()},
            Pattern.SEQUENCE_LENGTH,
        ),
        make(
            "the loss is the logarithm of the value, as DPO's is: −log σ in the place of 1 − σ",
            "loss",
            {i: _log_loss(one, beta=beta) for i, one in rows.items()},
        ),
        *(
            make(
                f"beta is {beta * factor:.4g} in the loss, asked {beta:g}: {factor:g} times",
                "beta",
                {i: one.value(one.gains, beta=beta * factor) for i, one in rows.items()},
            )
            for factor in FACTORS
        ),
        *name_scaled(expected, micro_batches=count, units="answers", count=total),
    ]


def _log_loss(one: Gains, *, beta: float) -> float:
    ahead = beta * (one.gains - one.point)
    signs = torch.where(one.desirable, 1.0, -1.0)
    return float(torch.nn.functional.softplus(-signs * ahead).mean())


def _list_rows(number: int, rows: Mapping[int, Gains], *, beta: float) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = []
    for index, one in rows.items():
        losses = value_losses(one.gains, one.desirable, beta=beta, reference_point=one.point)
        for row in range(one.policy.numel()):
            listed.append(
                {
                    "step": number,
                    "micro-batch": index,
                    "row": row,
                    "label": "desirable" if bool(one.desirable[row]) else "undesirable",
                    "log π": float(one.policy[row]),
                    "log π_ref": float(one.reference[row]),
                    "reference point": one.point,
                    "loss": float(losses[row]),
                }
            )
    return listed
