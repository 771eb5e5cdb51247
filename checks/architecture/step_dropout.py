"""Dropout acts where the config asks for it, and nowhere else.

Reference: the config's own probabilities; and an identity: without dropout, training mode and evaluation mode give the
same numbers.
Catches: a default dropout left on in fine-tuning, adapters or attention with a probability of their own, dropout that
was asked for and does not act (evaluation mode during training), other layers that change with the mode.
Cannot see: the size of the probability, or where in the model it acts.
Cost: shared with `step.lengths`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from checks.check import Check, inconclusive
from checks.material import Material
from checks.probes.answers import relative_limit
from checks.probes.plan import ONCE, TRAINED, TRAINED_AGAIN, read_text_config
from checks.roles import Role
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.dropout"


def judge(material: Material) -> Verdict:
    probes = material.probes
    if not {ONCE, TRAINED, TRAINED_AGAIN} <= set(probes):
        return inconclusive(NAME, material.no_probes or "the model was not asked in training mode")
    asked = dropouts(read_text_config(material.spec.model))
    moved = _largest(probes[TRAINED].log_probs - probes[TRAINED_AGAIN].log_probs)
    shifted = _largest(probes[TRAINED].log_probs - probes[ONCE].log_probs)
    floor = float(probes[ONCE].floor.max())
    threshold = MULTIPLES[material.spec.precision] * floor
    acts = bool(asked)
    measurements = (
        Measurement("training mode, twice", moved, threshold, (moved > threshold) is acts, floor, unit="nats"),
        Measurement("against evaluation mode", shifted, threshold, (shifted > threshold) is acts, floor, unit="nats"),
    )
    limits = {"token": relative_limit(threshold, [probes[ONCE]])}
    evidence = {"asked": asked}
    words = ", ".join(f"{key} {value:g}" for key, value in asked.items())
    if all(m.holds for m in measurements):
        none = f"no dropout is asked and none acts (training and evaluation mode differ by {shifted:.2g} nats)"
        sentence = f"dropout acts as asked ({words})" if asked else none
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    if asked:
        sentence = f"{words} is asked, but training mode gives the same numbers twice"
    elif moved > threshold:
        sentence = f"no dropout is asked, yet training mode gives other numbers each time, by up to {moved:.3g} nats"
    else:
        sentence = f"training mode differs from evaluation mode by {shifted:.3g} nats although no dropout is asked"
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        pattern=Pattern.MODEL_DEFINITION,
        first_wrong=next(iter(asked), "dropout"),
        evidence=evidence,
    )


def dropouts(config: Mapping[str, Any]) -> dict[str, float]:
    """Every probability of dropout above 0 that a config asks for, by its key."""
    found = {}
    for key, value in config.items():
        named = "dropout" in key or key.endswith("_pdrop")
        if named and isinstance(value, int | float) and not isinstance(value, bool) and value > 0.0:
            found[key] = float(value)
    return found


def _largest(difference: torch.Tensor) -> float:
    return float(difference.abs().nan_to_num(nan=torch.inf).max())


CHECK = Check(NAME, "dropout acts where it is asked, and nowhere else", __doc__ or "", judge, roles=(Role.PROBED,))
