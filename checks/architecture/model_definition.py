"""The model class that the framework trains computes the architecture's published definition.

Reference: the plain float64 model of the family, which calls no model code of transformers; the class under judgement
is computed in float64 too, with its own float32 casts lifted, so that faults far below float32 show.
Catches: a wrong eps, scale, rope, mask or tie in the class itself, which every framework that trains it shares.
Cannot see: families without a plain reference: those are inconclusive, and every check that used the class says so.
Cost: two float64 steps.
"""

from __future__ import annotations

from checks.check import Check, inconclusive
from checks.material import Material
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "model.definition"
AGREEMENT = 1e-10
"""Two float64 computations of one definition; the agreement measured is 2e-15 in the loss and 1e-14 in a gradient."""


def judge(material: Material) -> Verdict:
    definition = material.definition
    if definition is None:
        reason = material.why_not() if material.capture is None else material.no_definition
        return inconclusive(NAME, reason or "no independent reference was computed")
    measurements = tuple(
        Measurement(name, error, AGREEMENT, error <= AGREEMENT, limit=AGREEMENT)
        for name, error in definition.errors.items()
    )
    limits = {"gradient": AGREEMENT}
    evidence = {"class": definition.class_name, "lifted_casts": list(definition.lifted_casts)}
    worst = max(measurements, key=lambda m: m.value)
    if all(m.holds for m in measurements):
        sentence = (
            f"{definition.class_name} in float64 agrees with the plain reference within {worst.value:.1g} "
            f"in the loss and {len(measurements) - 1} gradients ({len(definition.lifted_casts)} float32 casts lifted)"
        )
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    wrong = [m for m in measurements if not m.holds]
    sentence = (
        f"{definition.class_name} departs from the published definition in {len(wrong)} quantities, "
        f"worst {worst.name} by {worst.value:.3g}"
    )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        pattern=Pattern.MODEL_DEFINITION,
        first_wrong=worst.name,
        evidence=evidence,
    )


CHECK = Check(NAME, "the model class computes its published definition", __doc__ or "", judge, reference=True)
