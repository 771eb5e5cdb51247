"""The same batch twice gives the same numbers, bit by bit.

Reference: an identity, the model's own first answer.
Catches: kernels that add in changing order, state that one forward leaves to the next (a cache, a running
statistic, a rope table that grew), uninitialised memory.
Cannot see: a backward that is not deterministic: a second pass over a failing step tells that.
Cost: shared with `step.lengths`.
"""

from __future__ import annotations

import torch

from checks.check import Check, inconclusive
from checks.material import Material
from checks.probes.answers import relative_limit
from checks.probes.plan import AGAIN, ONCE
from checks.roles import Role
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.determinism"


def judge(material: Material) -> Verdict:
    first, second = material.probes.get(ONCE), material.probes.get(AGAIN)
    if first is None or second is None:
        return inconclusive(NAME, material.no_probes or "the batch was not answered twice")
    moved = float((first.log_probs - second.log_probs).abs().nan_to_num(nan=torch.inf).max())
    floor = float(first.floor.max())
    threshold = MULTIPLES[material.spec.precision] * floor
    measurements = (Measurement("first against second", moved, threshold, moved <= threshold, floor, unit="nats"),)
    limits = {"token": 0.0 if moved == 0.0 else relative_limit(threshold, [first])}
    if moved == 0.0:
        sentence = f"{first.log_probs.numel()} log-probabilities are the same bit by bit the second time"
        return Verdict(NAME, Status.PASS, sentence, measurements, limits)
    if moved <= threshold:
        sentence = (
            f"the second answer differs by {moved:.2g} nats, below the noise of the precision ({threshold:.2g}): "
            "comparisons bit by bit say nothing on this device; ask torch for deterministic algorithms"
        )
        return Verdict(NAME, Status.INCONCLUSIVE, sentence, measurements, limits)
    return Verdict(
        NAME,
        Status.FAIL,
        f"the same batch gives other numbers the second time, by up to {moved:.3g} nats (noise {threshold:.2g})",
        measurements,
        limits,
        pattern=Pattern.PRECISION,
        first_wrong="forward",
    )


CHECK = Check(NAME, "the same batch twice gives the same numbers", __doc__ or "", judge, roles=(Role.PROBED,))
