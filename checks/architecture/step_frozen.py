"""What is trained moves, and what is frozen does not.

Reference: an identity: a frozen parameter is the same, to the last bit of its sketch, before the first captured step
and after the last; one that is trained, with a rate and a gradient above zero, is not. Which parameters are trained is
what was asked: all of them, or with LoRA the adapters alone.
Catches: a base model that moves under adapters, a layer or an embedding that is silently frozen
(`peft-tied-head-adapter-merged-into-embedding` moves one that should not), weight decay on frozen weights, parameters
that an optimizer holds twice or forgets.
Cannot see: whether a movement is the right one (`step.update`); a parameter whose dtype rounds every step away, which
is inconclusive.
Cost: nothing beyond the run.
"""

from __future__ import annotations

import math

from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.update import replay_update
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.frozen"
SAME = 1e-13
"""Two sketches of equal tensors differ at most by the rounding of a float64 sum of sums."""


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    first, last = capture.steps[0], capture.steps[-1]
    asked = _asked_to_train(material, capture, first)
    moved = measure_movements(capture, first, last)
    if not moved:
        return inconclusive(NAME, "no parameter was recorded both before the first step and after the last")
    rates = [material.asked_rate(step) for step in range(first, last + 1)]
    may_move = any(rate > 0.0 for rate in rates)
    still_trained = sorted(name for name, by in moved.items() if name in asked and by <= SAME and may_move)
    still_trained = [name for name in still_trained if _had_gradient(capture, name)]
    rounded = find_rounded_away(material, capture) if still_trained else frozenset()
    held = [name for name in still_trained if name in rounded]
    still_trained = [name for name in still_trained if name not in rounded]
    loose = sorted(name for name, by in moved.items() if name not in asked and by > SAME)
    measurements = tuple(
        Measurement(name, by, SAME, (by > SAME) if name in asked else (by <= SAME), unit="relative movement")
        for name, by in moved.items()
        if name not in asked or name in still_trained
    )
    evidence = {"still": still_trained, "moved": loose, "compared": len(moved), "rounded_away": held}
    limits = {"weights": 2 * SAME}
    if loose:
        by = moved[loose[0]]
        sentence = f"{loose[0]} is not asked to be trained and moves by {by:.3g} of its norm ({len(loose)} in all)"
        return Verdict(
            NAME,
            Status.FAIL,
            sentence,
            measurements,
            limits,
            pattern=Pattern.MODEL_DEFINITION,
            first_wrong=loose[0],
            evidence=evidence,
        )
    if still_trained:
        sentence = f"{still_trained[0]} has a gradient and does not move ({len(still_trained)} in all)"
        return Verdict(
            NAME,
            Status.FAIL,
            sentence,
            measurements,
            limits,
            pattern=Pattern.OBJECTIVE_SCALE,
            first_wrong=still_trained[0],
            evidence=evidence,
        )
    if not may_move:
        return inconclusive(NAME, "the learning rate is 0 throughout; capture a step after warm-up (steps=…)")
    if held:
        sentence = (
            f"{held[0]} does not move ({len(held)} in all), and its update is smaller than its own rounding: nothing "
            "says whether it is trained; raise lr or use precision=float32"
        )
        return inconclusive(NAME, sentence, measurements=measurements, detection_limits=limits, evidence=evidence)
    frozen = sum(name not in asked for name in moved)
    sentence = f"{len(moved) - frozen} trained parameters move, {frozen} frozen ones do not"
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)


def _asked_to_train(material: Material, capture: Capture, step: int) -> frozenset[str]:
    record = capture.step(step)
    return frozenset(material.expected_adapters if material.spec.lora else (*record.trainable, *record.frozen))


def find_rounded_away(material: Material, capture: Capture) -> frozenset[str]:
    """Parameters whose dtype rounds each captured step away, so that the optimizer's definition leaves them, too."""
    replays = [
        replay_update(
            material.spec,
            capture,
            step,
            decaying=material.weight_decay_names,
            total_steps=material.total_steps,
            float32=material.float32_names,
        )
        for step in capture.steps
    ]
    names = frozenset.intersection(*(frozenset(replay) for replay in replays))
    return frozenset(name for name in names if all(replay[name].rounds_away for replay in replays))


def measure_movements(capture: Capture, first: int, last: int) -> dict[str, float]:
    """‖after the last step − before the first‖ / ‖before‖ by sketch, for what was recorded at both.

    A frozen parameter has no update, and is recorded before each captured step only.
    """
    before = capture.tensors(first, "parameter_before")
    updated = capture.tensors(last, "parameter_after")
    after = {**(capture.tensors(last, "parameter_before") if last > first else {}), **updated}
    moved = {}
    for name, record in before.items():
        ours, theirs = record.read("sketch"), after[name].read("sketch") if name in after else None
        if ours is not None and theirs is not None:
            moved[name] = float((theirs - ours).norm()) / max(float(ours.norm()), math.ulp(0.0))
    return moved


def _had_gradient(capture: Capture, name: str) -> bool:
    gradients = [capture.tensors(step, "gradient").get(name) for step in capture.steps]
    return any(record is not None and record.norm > 0.0 for record in gradients)


CHECK = Check(NAME, "what is trained moves, and what is frozen does not", __doc__ or "", judge)
