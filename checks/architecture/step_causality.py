"""A later token moves no earlier log-probability.

Reference: an identity: two rows with one past and two futures give the same numbers over that past, within the noise
of the float64 reference's own forms.
Catches: attention, convolutions or recurrent state that look ahead, a causal mask that is off by one or left out,
routers whose capacity depends on later tokens.
Cannot see: a model that looks back too little (`step.lengths`).
Cost: shared with `step.lengths`.
"""

from __future__ import annotations

import torch

from checks.check import Check, inconclusive
from checks.material import Material
from checks.plot import to_evidence
from checks.probes.answers import draw_moved, relative_limit
from checks.probes.plan import OTHER_FUTURE, PAST
from checks.roles import Role
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.causality"


def judge(material: Material) -> Verdict:
    one, other = material.probes.get(PAST), material.probes.get(OTHER_FUTURE)
    if one is None or other is None:
        return inconclusive(NAME, material.no_probes or "not both rows were answered")
    same = one.input_ids[0] == other.input_ids[0]
    past = int((~same).nonzero()[0, 0])
    # The last token of the past predicts the first of the future, which differs: one number less.
    ours, theirs = one.log_probs[0, : past - 1], other.log_probs[0, : past - 1]
    decided = ~(one.exact[0, : past - 1].isnan() | other.exact[0, : past - 1].isnan())
    if not bool(decided.any()):
        return inconclusive(NAME, "an expert choice at the first token is undecided in this precision; use float32")
    moved = (ours - theirs).abs().nan_to_num(nan=torch.inf)
    floor = float(max(one.floor[0], other.floor[0]))
    threshold = MULTIPLES[material.spec.precision] * floor
    largest = float(moved[decided].max())
    holds = largest <= threshold
    measurements = (
        Measurement("tokens of the past", largest, threshold, holds, floor, threshold + floor, unit="nats"),
    )
    limits = {"token": relative_limit(threshold + floor, [one, other])}
    plot = draw_moved("Movement of the past between two futures", moved, threshold)
    evidence = {"past": past, "plots": to_evidence([plot])}
    if holds:
        how = "bit by bit" if largest == 0.0 else f"within {largest:.2g} nats"
        sentence = f"{int(decided.sum())} tokens before two different futures are the same {how}"
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    first = int((decided & (moved > threshold)).nonzero()[0, 0])
    sentence = (
        f"the future moves the past: from position {first} on, log-probabilities before two different futures differ "
        f"by up to {largest:.3g} nats (allowed {threshold:.2g})"
    )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        pattern=Pattern.MODEL_DEFINITION,
        first_wrong="attention mask",
        evidence=evidence,
    )


CHECK = Check(NAME, "a future token moves no earlier logit", __doc__ or "", judge, roles=(Role.PROBED,))
