"""Decoding token by token with the cache gives the numbers of one forward over the whole row.

Reference: an identity, the same model's full forward; and the float64 reference for the noise that is allowed.
Catches: a cache that is cut, misplaced or of another window, positions that are off while decoding, recurrent or
convolution state that is carried wrongly, sliding windows that differ between training and generation.
Cannot see: another engine's cache (`serving.logprobs`), or batches of rows with different lengths.
Cost: shared with `step.lengths`; 47 forwards of one token.
"""

from __future__ import annotations

import torch

from checks.check import Check, inconclusive
from checks.material import Material
from checks.plot import to_evidence
from checks.probes.answers import draw_moved, relative_limit
from checks.probes.plan import CACHED, UNCACHED
from checks.roles import Role
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "serving.cache"


def judge(material: Material) -> Verdict:
    cached, whole = material.probes.get(CACHED), material.probes.get(UNCACHED)
    if cached is None or whole is None:
        probed = material.capture_of(Role.PROBED)
        notes = () if probed is None else probed.missing
        reason = next((note.why for note in notes if note.what == f"probe {CACHED}"), "")
        return inconclusive(NAME, reason or material.no_probes or "the row was not decoded with a cache")
    decided = ~whole.exact[0].isnan()
    if not bool(decided.any()):
        return inconclusive(NAME, "an expert choice at the first token is undecided in this precision; use float32")
    moved = (cached.log_probs[0] - whole.log_probs[0]).abs().nan_to_num(nan=torch.inf)
    floor = float(whole.floor[0])
    threshold = MULTIPLES[material.spec.precision] * floor
    largest = float(moved[decided].max())
    holds = largest <= threshold
    measurements = (
        Measurement("decoded against whole", largest, threshold, holds, floor, threshold + floor, unit="nats"),
    )
    limits = {"token": relative_limit(threshold + floor, [whole])}
    evidence = {"plots": to_evidence([draw_moved("Decoded one by one against the whole row", moved, threshold)])}
    if holds:
        sentence = f"{int(decided.sum())} tokens decoded one by one agree with the whole row within {largest:.2g} nats"
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    first = int((decided & (moved > threshold)).nonzero()[0, 0])
    sentence = (
        f"decoding with the cache departs from the whole row at position {first}, by up to {largest:.3g} nats "
        f"(allowed {threshold:.2g})"
    )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        pattern=Pattern.STATE_TRANSFER,
        first_wrong=f"cache at position {first}",
        evidence=evidence,
    )


CHECK = Check(
    NAME, "decoding with the cache gives the numbers of the whole row", __doc__ or "", judge, roles=(Role.PROBED,)
)
