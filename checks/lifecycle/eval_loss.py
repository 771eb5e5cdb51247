"""The evaluation loss that is reported is the mean of −log p over the counted tokens of the rows that were given.

Reference: the definition, in float64 and evaluation mode, from the checkpoint's weights, each row alone. The framework
evaluates the first 8 rows of the data once, before its first step, in batches of `batch` rows. Trainers also report a
mean of batch means under this name, weighted by rows; that is another number wherever batches count unlike numbers of
tokens, and changes with the batch size. It is told apart and inconclusive: transformers documents neither as what
`eval_loss` is, and an open report calls it a bug (https://github.com/huggingface/transformers/issues/39241).
Catches: an evaluation in training mode (`verl-megatron-logprob-in-train-mode`), over other rows
(`mswift-eval-sampler-uses-train-progress`, `mswift-vpp-eval-reads-train-data`), a wrong denominator
(`swift-sp-eval-loss-denominator`), another mask, rows packed into one another (`axolotl-eval-set-packed-by-mistake`), a
last batch that counts as a whole one.
Cannot see: metrics beside the loss; which weights are evaluated later in a run; dropout where the config has none.
Cost: shared with the other checks that ask the prepared model; 5 forwards of the reference a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.evaluation import Evaluation
from checks.references.model import NoReference
from checks.references.reference import refuse_dropout
from checks.roles import Role
from checks.spec import RunSpec
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "eval.loss"

REPORT = "https://github.com/huggingface/transformers/issues/39241"

USEFUL_LIMIT = 0.05
"""A check that would miss an evaluation loss that is 5 % off is worth nothing: inconclusive."""

LARGEST_FACTOR = 64
"""Of a wrong denominator that is looked for: a number of ranks, or of accumulation steps."""


def judge(material: Material) -> Verdict:
    probed, reference = material.capture_of(Role.PROBED), material.evaluation
    if probed is None or reference is None:
        return inconclusive(NAME, material.no_evaluation or "the run that evaluates left no capture")
    logged = [record.eval_loss for record in probed.log if record.eval_loss is not None]
    if not logged:
        return inconclusive(NAME, f"{material.spec.framework} logged no evaluation loss")
    if reference.undecided:
        sentence = (
            f"{reference.undecided} of the evaluated rows hold an expert choice that this precision does not decide"
        )
        return inconclusive(NAME, f"{sentence}; use float32 or other rows")
    return _decide(material.spec, logged[0], reference, dropout=_find_dropout(probed))


def _find_dropout(probed: Capture) -> str:
    """The setting by which dropout acts in training mode; empty where none does."""
    try:
        refuse_dropout(probed, probed.steps[0])
    except NoReference as error:
        return str(error).partition(";")[0]
    return ""


def _decide(spec: RunSpec, value: float, reference: Evaluation, *, dropout: str) -> Verdict:
    multiple = MULTIPLES[spec.precision]
    by_token = _measure("mean over tokens", value, reference.token_mean, reference.token_floor, multiple)
    by_row = _measure("mean of batch means", value, reference.row_mean, reference.row_floor, multiple)
    apart = abs(reference.token_mean - reference.row_mean)
    told_apart = apart > by_token.threshold + by_row.threshold
    limit = (multiple + 1.0) * reference.token_floor / reference.token_mean
    evidence: dict[str, object] = {
        "eval_loss": value if math.isfinite(value) else str(value),
        "mean_over_tokens": reference.token_mean,
        "mean_of_batch_means": reference.row_mean,
        "tokens": reference.tokens,
        "batches": [{"rows": rows, "tokens": tokens, "mean": mean} for rows, tokens, mean in reference.batches],
        "told_apart": told_apart,
        "source": REPORT,
    }
    rows = sum(count for count, _, _ in reference.batches)
    what = f"{reference.tokens} tokens of {rows} rows"
    if limit > USEFUL_LIMIT:
        sentence = f"an evaluation loss that is {limit:.0%} off would not be seen in this precision; use float32"
        return inconclusive(NAME, sentence, measurements=(by_token, by_row), evidence=evidence)
    if by_token.holds:
        also = "" if told_apart else f"; the mean of batch means ({reference.row_mean:.7g}) cannot be told from it here"
        sentence = f"eval_loss {value:.7g} is the mean over {what} ({reference.token_mean:.7g}){also}"
        return _conclude(Status.PASS, sentence, (by_token,), limit, reference, evidence)
    if by_row.holds:
        off = 100.0 * (value / reference.token_mean - 1.0)
        sentence = (
            f"eval_loss {value:.7g} is the mean of batch means weighted by rows ({reference.row_mean:.7g}), not the "
            f"mean over {what} ({reference.token_mean:.7g}; {off:+.2g} %): it changes with the batch size, and "
            f"{spec.framework} does not document which it means; evaluate in one batch (batch={rows}) to have it judged"
        )
        return _conclude(Status.INCONCLUSIVE, sentence, (by_row, by_token), limit, reference, evidence)
    cause = _explain(value, reference, by_token.threshold, dropout=dropout)
    sentence = (
        f"eval_loss is {value:.7g}; the mean over {what} is {reference.token_mean:.7g} (allowed "
        f"{by_token.threshold:.1g}) and the mean of batch means {reference.row_mean:.7g}: {cause.sentence}"
    )
    verdict = _conclude(Status.FAIL, sentence, (by_token, by_row), limit, reference, evidence)
    return replace(verdict, pattern=cause.pattern, first_wrong=cause.first_wrong)


@dataclass(frozen=True)
class _Cause:
    sentence: str
    first_wrong: str
    pattern: Pattern | None


def _explain(value: float, reference: Evaluation, threshold: float, *, dropout: str) -> _Cause:
    """The simple thing that would give the figure: a part of the batches, a whole last one, another denominator."""
    batches, size = reference.batches, reference.batches[0][0]
    for number in range(1, len(batches)):
        for part, which in ((batches[:number], "first"), (batches[-number:], "last")):
            if any(abs(value - mean) <= threshold for mean in _means(part)):
                sentence = f"it is that of the {which} {number} of {len(batches)} batches"
                return _Cause(sentence, "rows of the evaluation", Pattern.LOSS_MASK)
    whole = math.fsum(mean for _, _, mean in batches) / len(batches)
    if batches[-1][0] < size and abs(value - whole) <= threshold:
        sentence = f"the last batch, of {batches[-1][0]} rows, counts as much as one of {size}"
        return _Cause(sentence, "weight of the last batch", Pattern.OBJECTIVE_SCALE)
    for factor in range(2, LARGEST_FACTOR + 1):
        for scaled, shown in ((value / factor, f"{factor} times"), (value * factor, f"1/{factor} of")):
            if min(abs(scaled - reference.token_mean), abs(scaled - reference.row_mean)) <= threshold:
                return _Cause(f"it is {shown} that", "evaluation loss denominator", Pattern.OBJECTIVE_SCALE)
    if dropout:
        sentence = f"the model may not have been in evaluation mode: {dropout}"
        return _Cause(sentence, "dropout in the evaluation", Pattern.MODEL_DEFINITION)
    sentence = "other rows, another mask, or a model that is not in evaluation mode"
    return _Cause(sentence, "evaluation loss", None)


def _means(batches: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Over tokens, and over rows."""
    tokens, rows = sum(count for _, count, _ in batches), sum(count for count, _, _ in batches)
    by_token = math.fsum(count * mean for _, count, mean in batches) / tokens
    return by_token, math.fsum(count * mean for count, _, mean in batches) / rows


def _measure(name: str, value: float, expected: float, floor: float, multiple: float) -> Measurement:
    error = abs(value - expected) if math.isfinite(value) else math.inf
    threshold = multiple * floor
    return Measurement(name, error, threshold, error <= threshold, floor, threshold + floor, unit="nats")


def _conclude(
    status: Status,
    sentence: str,
    measurements: tuple[Measurement, ...],
    limit: float,
    reference: Evaluation,
    evidence: dict[str, object],
) -> Verdict:
    limits = {"evaluation loss": limit}
    return Verdict(NAME, status, sentence, measurements, limits, shared_code=reference.shared, evidence=evidence)


CHECK = Check(
    NAME, "the evaluation loss is the mean over the tokens it counts", __doc__ or "", judge, roles=(Role.PROBED,)
)
