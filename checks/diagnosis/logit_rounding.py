"""Whether wrong gradients are those of the definition with the loss's gradient by the logits rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

from checks.captures.capture import Capture
from checks.captures.differences import record_difference
from checks.diagnosis.signatures import MANY, Signature
from checks.references.reference import Reference
from checks.tolerance import TensorJudgement
from checks.verdict import Pattern

LEFT = 0.25
"""What the rounding leaves of a gradient's error: logits near the edge of a step are rounded to its other side."""

BFLOAT16 = 2.0**-9
"""Half of a step, relative to the number that is rounded."""


def read_rounding(capture: Capture, reference: Reference, judgements: Sequence[TensorJudgement]) -> Signature | None:
    """The cause in words where it explains (nearly) every wrong gradient; None where it was not computed, or does not.

    The forward must agree: this rounding comes after it.
    """
    wrong = [judgement for judgement in judgements if not judgement.holds]
    if not wrong or not reference.rounded_gradients:
        return None
    records = capture.tensors(reference.step, "gradient")
    left = []
    for judgement in wrong:
        rounded = record_difference(records[judgement.name], reference.rounded_gradients[judgement.name])
        left.append(rounded.error / judgement.difference.error)
    if sum(each <= LEFT for each in left) < MANY * len(wrong):
        return None
    sizes = [judgement.difference.relative for judgement in wrong]
    sentence = (
        f"the forward agrees, and {len(wrong)} of {len(judgements)} gradients are those of the definition with the "
        f"loss's gradient by the logits rounded to bfloat16: they are off by {min(sizes):.2g} to {max(sizes):.2g} of "
        f"their norms (bfloat16 rounds by up to {BFLOAT16:.2g}), and that rounding leaves at most {max(left):.2g} of "
        "it unexplained; Megatron-core's fused cross-entropy returns this gradient in bfloat16, whatever the logits are"
    )
    return Signature(sentence, Pattern.PRECISION, "gradient by the logits")
