"""Log-probabilities are right at every length where a config makes a difference.

Reference: the float64 model on rows of ordinary tokens, one for each boundary of the config and its neighbours: the
shortest row, powers of two, the sliding window, the positions before and after rope scaling, the maximum.
Catches: a window off by one (`hf-flash-sliding-window-off-by-one`) or ignored (`hf-sdpa-ignores-sliding-window`),
scaling that starts at the wrong length, positions rounded in low precision (`hf-rope-bf16-positions`), kernels that
pad or cut. Names the first length and the first position that differ.
Cannot see: faults of the backward (`step.gradients`), lengths beyond those asked (the pass names the longest), tokens
behind an expert choice that the run's precision does not decide (they are counted).
Cost: one start of the framework, and four forwards of the reference a length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from checks.check import Check, inconclusive
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.probes.answers import Answer, relative_limit
from checks.probes.plan import LENGTH, plan_lengths, read_text_config
from checks.roles import Role
from checks.tolerance import MULTIPLES, USEFUL_TOKEN_LIMIT
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.lengths"


def judge(material: Material) -> Verdict:
    answers = [answer for name, answer in material.probes.items() if name.startswith(f"{LENGTH} ")]
    if not answers:
        return inconclusive(NAME, material.no_probes)
    answers.sort(key=lambda answer: answer.input_ids.shape[1])
    multiple = MULTIPLES[material.spec.precision]
    measurements = tuple(_measure(answer, multiple) for answer in answers)
    judged = sum(int((~answer.exact.isnan()).sum()) for answer in answers)
    asked = sum(answer.exact.numel() for answer in answers)
    plan = plan_lengths(read_text_config(material.spec.model))
    evidence = {
        "lengths": [
            [answer.input_ids.shape[1], plan.lengths.get(answer.input_ids.shape[1], ""), m.value, m.threshold]
            for answer, m in zip(answers, measurements, strict=True)
        ],
        "left_out": dict(plan.left_out),
        "plots": to_evidence([_draw(answers, measurements)]),
        "undecided": asked - judged,
    }
    limit = relative_limit(max(m.limit or 0.0 for m in measurements), answers)
    limits = {"token": limit}
    if judged * 2 < asked or limit > USEFUL_TOKEN_LIMIT:
        sentence = "too little can be told in this precision; run with precision=float32"
        return inconclusive(NAME, sentence, measurements=measurements, detection_limits=limits, evidence=evidence)
    wrong = [(answer, m) for answer, m in zip(answers, measurements, strict=True) if not m.holds]
    longest = answers[-1].input_ids.shape[1]
    if not wrong:
        worst = max(m.value for m in measurements)
        said = f"{len(answers)} lengths up to {longest} tokens agree, within {worst:.2g} nats"
        beyond = f"; {len(plan.left_out)} longer ones of the config were not asked" if plan.left_out else ""
        return Verdict(
            NAME, Status.PASS, said + beyond, measurements, limits, material.probes_shared, evidence=evidence
        )
    answer, first = wrong[0]
    length, position = answer.input_ids.shape[1], first_wrong_position(answer, first.threshold)
    right = [a.input_ids.shape[1] for a, m in zip(answers, measurements, strict=True) if m.holds]
    shorter = max((n for n in right if n < length), default=None)
    before = "" if shorter is None else f", while rows of {shorter} tokens are right"
    sentence = (
        f"from {length} tokens on ({plan.lengths.get(length, 'a boundary')}) log-probabilities differ, first at "
        f"position {position}, by up to {first.value:.3g} nats (allowed {first.threshold:.2g}){before}; "
        f"{len(wrong)} of {len(answers)} lengths are wrong"
    )
    if shorter is None:
        pattern, where = Pattern.MODEL_DEFINITION, "model"
    else:
        pattern, where = Pattern.SEQUENCE_LENGTH, f"position {position} of {length}"
    return Verdict(
        NAME, Status.FAIL, sentence, measurements, limits, material.probes_shared, pattern, where, evidence=evidence
    )


def first_wrong_position(answer: Answer, threshold: float) -> int:
    """The first position whose prediction of the next token is off, counted from 0."""
    wrong = (answer.errors > threshold) | (answer.errors.isnan() & ~answer.exact.isnan())
    return int(torch.nonzero(wrong)[0, 1])


def _draw(answers: Sequence[Answer], measurements: Sequence[Measurement]) -> Plot:
    lengths = [float(answer.input_ids.shape[1]) for answer in answers]
    return Plot(
        "Largest error of a token by length of its row",
        "tokens in the row",
        "nats",
        (
            Curve("error", lengths, [m.value or None for m in measurements]),
            Curve("threshold", lengths, [m.threshold for m in measurements], style="threshold"),
            Curve("noise floor", lengths, [m.floor for m in measurements], style="floor"),
        ),
        scale="log",
    )


def _measure(answer: Answer, multiple: float) -> Measurement:
    floor = float(answer.floor.max())
    error, threshold = answer.largest_error, multiple * floor
    return Measurement(answer.name, error, threshold, error <= threshold, floor, threshold + floor, unit="nats")


CHECK = Check(
    NAME,
    "log-probabilities are right at every length that the config makes special",
    __doc__ or "",
    judge,
    roles=(Role.PROBED,),
)
