"""Loss scaling in fp16 changes nothing but what would overflow: unscaled before the clip, skipped where infinite.

Reference: the definition of dynamic loss scaling (arXiv:1710.03740, section 3.2, and
https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling). A step is skipped if and only if its gradients hold an
infinity or a NaN; the scale is then multiplied by the backoff factor, and by the growth factor after so many steps in a
row that were not skipped; gradients are divided by the scale before they are clipped; the schedule counts updates, and
a skipped step is none.
Catches: a norm that is taken, and clipped, of gradients that are still multiplied by the scale; a schedule that goes on
where a step was skipped; a scale that is not updated, or otherwise than its factors say; skipped steps without an
infinity, and steps taken with one; fp16 that was asked and trains without a scaler.
Cannot see: whether the scale is a good one; a scaler that is not torch's `GradScaler`, and optimizers that divide and
skip inside of a fused kernel. Whether unscaled gradients are right is `step.gradients`'.
Cost: nothing beyond the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from checks.captures.scaling import Attempt, read_attempts
from checks.check import Check, inconclusive, skipped
from checks.errors import CaptureError
from checks.material import Material
from checks.plot import Curve, Plot, to_evidence
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.scaler"
TOLERANCE = 1e-6
"""Of a rate that a framework may keep in float32; as in step.schedule."""


@dataclass(frozen=True)
class _Wrong:
    where: str
    sentence: str
    pattern: Pattern


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    try:
        attempts = read_attempts(capture)
    except CaptureError as error:
        return inconclusive(NAME, str(error))
    if not attempts:
        return _judge_without(material)
    if any(attempt.fused for attempt in attempts):
        return inconclusive(NAME, "the optimizer divides by the scale and skips inside of its kernel; use another one")
    wrong = [wrong for kind in _KINDS for wrong in kind(material, attempts)]
    measurements = tuple(
        Measurement(
            name, float(len(list(kind(material, attempts)))), 0.0, not list(kind(material, attempts)), unit="count"
        )
        for name, kind in zip(_NAMES, _KINDS, strict=True)
    )
    evidence = {
        "attempts": [
            {
                "step": a.step,
                "taken": "yes" if a.stepped else "skipped",
                "infinities": a.found_inf,
                "scale": a.scale,
                "next scale": a.next_scale,
                "rate": a.rate,
                "clips before unscaling": a.clips_before,
            }
            for a in attempts
        ],
        "plots": to_evidence([_draw(attempts)]),
    }
    if wrong:
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more of {len(attempts)} attempts' claims)" if len(wrong) > 1 else ""
        return Verdict(
            NAME,
            Status.FAIL,
            first.sentence + more,
            measurements,
            pattern=first.pattern,
            first_wrong=first.where,
            evidence=evidence,
        )
    left_out = sum(not attempt.stepped for attempt in attempts)
    overflow = (
        f"{left_out} of them skipped, each with an infinity"
        if left_out
        else "none of them with an infinity, so that no step had to be skipped"
    )
    sentence = (
        f"{len(attempts)} attempts at an update, {overflow}; the scale goes from {attempts[0].scale:g} to "
        f"{attempts[-1].next_scale:g} as its factors say, and clipping sees unscaled gradients"
    )
    return Verdict(NAME, Status.PASS, sentence, measurements, evidence=evidence)


def _judge_without(material: Material) -> Verdict:
    if material.spec.precision == "fp16":
        sentence = "fp16 was asked, and no update went through a GradScaler: small gradients become zero"
        return Verdict(NAME, Status.FAIL, sentence, pattern=Pattern.PRECISION, first_wrong="loss scale")
    return skipped(NAME, "no update of the run went through a GradScaler: there is no loss scaling to judge")


def _find_clips(material: Material, attempts: Sequence[Attempt]) -> Iterator[_Wrong]:
    """Clips of gradients that are still multiplied by the scale."""
    for attempt in attempts:
        if attempt.clips_before:
            sentence = (
                f"at step {attempt.step} gradients are clipped while they are multiplied by the scale of "
                f"{attempt.scale:g}: unscale_ comes after the clip"
            )
            yield _Wrong("clipping before unscaling", sentence, Pattern.OBJECTIVE_SCALE)


def _find_skips(material: Material, attempts: Sequence[Attempt]) -> Iterator[_Wrong]:
    """Steps taken with an infinity, or skipped without one."""
    for attempt in attempts:
        if attempt.found_inf is None:
            sentence = f"at step {attempt.step} nobody looked for infinities in the gradients"
        elif attempt.stepped and attempt.found_inf > 0:
            sentence = f"step {attempt.step} was taken although its gradients hold an infinity or a NaN"
        elif not attempt.stepped and attempt.found_inf == 0:
            sentence = f"step {attempt.step} was skipped although all its gradients are finite"
        else:
            continue
        yield _Wrong("skipped steps", sentence, Pattern.OBJECTIVE_SCALE)


def _find_scales(material: Material, attempts: Sequence[Attempt]) -> Iterator[_Wrong]:
    """Scales that are not what the factors make of the one before."""
    for attempt in attempts:
        scale, tracker = follow(attempt)
        if attempt.next_scale != scale or (attempt.set_to is None and attempt.next_tracker != tracker):
            why = "an infinity was found" if attempt.found_inf else "no infinity was found"
            sentence = (
                f"after step {attempt.step} the scale is {attempt.next_scale:g} and {attempt.next_tracker} steps count "
                f"for its growth; by its definition {scale:g} and {tracker}, for {why} with {attempt.scale:g}"
            )
            yield _Wrong("loss scale", sentence, Pattern.PRECISION)


def follow(attempt: Attempt) -> tuple[float, int]:
    """The next scale and count of steps without an infinity, by definition, in float32 as the scaler keeps it."""
    if attempt.set_to is not None:
        return _float32(attempt.set_to), attempt.tracker
    if attempt.found_inf:
        return _float32(attempt.scale * attempt.backoff_factor), 0
    if attempt.tracker + 1 == attempt.growth_interval:
        grown = _float32(attempt.scale * attempt.growth_factor)
        return (grown if math.isfinite(grown) else attempt.scale), 0
    return attempt.scale, attempt.tracker + 1


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def _find_rates(material: Material, attempts: Sequence[Attempt]) -> Iterator[_Wrong]:
    """Rates that are not the schedule's at the number of updates so far."""
    taken = 0
    for attempt in attempts:
        asked = material.asked_rate(taken + 1)
        if attempt.rate is not None and abs(attempt.rate - asked) > TOLERANCE * abs(asked):
            sentence = (
                f"after {taken} updates the rate is {attempt.rate:.6g}, and the schedule gives {asked:.6g} for the "
                "next: it went on with a step that was skipped"
            )
            if not any(not each.stepped for each in attempts):
                return  # without a skipped step the rate is step.schedule's
            yield _Wrong("learning rate after a skipped step", sentence, Pattern.OBJECTIVE_SCALE)
        taken += attempt.stepped


_NAMES = ("clips before unscaling", "wrongly skipped or taken steps", "scales not as defined", "rates not as asked")
_KINDS = (_find_clips, _find_skips, _find_scales, _find_rates)


def _draw(attempts: Sequence[Attempt]) -> Plot:
    x = [float(index) for index in range(1, len(attempts) + 1)]
    lost = [None if attempt.stepped else attempt.scale for attempt in attempts]
    curves = (
        Curve("scale", x, [attempt.scale for attempt in attempts]),
        Curve("skipped", x, lost, style="points"),
    )
    return Plot("Loss scale by attempt", "attempt", "scale", curves, scale="log")


CHECK = Check(NAME, "loss scaling changes nothing but what would overflow", __doc__ or "", judge)
