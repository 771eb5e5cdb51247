"""Every gradient, before clipping, is that of the loss's definition: in size, in direction, and by block.

Reference: the reference model's gradients in float64, each document alone, the global token count as denominator. The
floor is what the same computation shows in the run's own precision over forms that must not matter.
Catches: nearly every fault of the forward, the backward, the loss or the accumulation: the smallest is printed as the
limit.
Cannot see: code that the framework shares with the reference (named in the verdict), the optimizer (`step.update`), and
gradients of steps after the first unless the capture is in full (`convergence.curve` sees what they lead to).
Cost: one float64 step and the noise variants; about 32 bytes a parameter.
"""

from __future__ import annotations

import math
from statistics import median

from checks.architecture.step_loss import forward_differs, read_positions, read_targets, token_errors
from checks.captures.capture import Capture
from checks.captures.differences import Difference, record_difference
from checks.check import Check, inconclusive
from checks.diagnosis.first_divergence import describe_modules
from checks.diagnosis.logit_rounding import read_rounding
from checks.diagnosis.signatures import Signature, read_gradients, scale_spread
from checks.material import Material
from checks.references.reference import Reference
from checks.references.routing import ChoiceError
from checks.tolerance import (
    MULTIPLES,
    USEFUL_SCALE_LIMIT,
    USEFUL_TENSOR_LIMIT,
    VERSION,
    ScaleJudgement,
    TensorJudgement,
    judge_scale,
    judge_tensor,
    limits_by_kind,
)
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.gradients"

SHOWN_BLOCKS = 16
"""Blocks of a tensor that a verdict keeps, the worst: a vocabulary has a hundred thousand rows."""


def judge(material: Material) -> Verdict:
    if material.whole is None or not material.references:
        return inconclusive(NAME, material.why_not())
    verdicts = [judge_step(material, reference) for _, reference in sorted(material.references.items())]
    return next((v for v in verdicts if v.status is not Status.PASS), verdicts[0])


def judge_step(material: Material, reference: Reference) -> Verdict:
    """Judge one captured step against its reference."""
    assert material.whole is not None
    absent = _absent(material.whole, reference)
    if absent is not None:
        return absent
    judgements, scale = compare_gradients(material.whole, reference, precision=material.spec.precision)
    return _decide(material, reference, judgements, scale)


def compare_gradients(
    capture: Capture, reference: Reference, *, precision: str
) -> tuple[tuple[TensorJudgement, ...], ScaleJudgement]:
    """Hold every recorded gradient against its reference, in the reference's (model) order."""
    multiple = MULTIPLES[precision]
    records = capture.tensors(reference.step, "gradient")
    differences: dict[str, Difference] = {
        name: record_difference(records[name], projection)
        for name, projection in reference.gradients.items()
        if name in records
    }
    judgements = tuple(
        judge_tensor(name, difference, reference.floor(name), multiple=multiple)
        for name, difference in differences.items()
    )
    variants = [variant.differences for variant in reference.variants]
    return judgements, judge_scale(differences, variants, epsilon=reference.epsilon, multiple=multiple)


def _absent(capture: Capture, reference: Reference) -> Verdict | None:
    records = capture.tensors(reference.step, "gradient")
    lacking = [
        name
        for name, projection in reference.gradients.items()
        if name not in records and projection.norm > reference.floor(name).total
    ]
    if not lacking:
        return None
    sentence = f"{len(lacking)} parameters that the loss depends on received no gradient, first {lacking[0]}"
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        pattern=Pattern.OBJECTIVE_SCALE,
        first_wrong=lacking[0],
        evidence={"absent": lacking},
    )


def _decide(
    material: Material, reference: Reference, judgements: tuple[TensorJudgement, ...], scale: ScaleJudgement
) -> Verdict:
    limits = limits_by_kind(judgements, scale)
    multiple = MULTIPLES[material.spec.precision]
    chosen = tuple(_choice_measurement(choice, multiple) for choice in reference.choices)
    measurements = (_scale_measurement(scale), *(_measurement(j) for j in judgements), *chosen)
    low, high = scale_spread({j.name: j.difference for j in judgements})
    evidence: dict[str, object] = {
        "tolerance": VERSION,
        "step": reference.step,
        "scale": scale.scale,
        "scale_range": [low, high],
        "cosines": {j.name: j.difference.cosine for j in judgements},
        "scales": {j.name: j.difference.scale for j in judgements},
        "ratios": {j.name: j.ratio for j in judgements},
        "blocks": {j.name: found for j in judgements if (found := _blocks(j, reference, multiple))},
        "reference": reference.source.name,
        "variants": [variant.name for variant in reference.variants],
        "lifted_casts": list(reference.lifted_casts),
        "notes": list(reference.notes),
    }
    shared = reference.source.shared
    if all(m.holds for m in measurements):
        useless = _useless(judgements, scale)
        if useless is not None:
            return Verdict(NAME, Status.INCONCLUSIVE, useless, measurements, limits, shared, evidence=evidence)
        worst = max(judgements, key=lambda j: j.ratio)
        sentence = (
            f"{len(judgements)} gradients agree with the {reference.source.name}; worst {worst.name} "
            f"at {worst.ratio:.2g} of its threshold, scale {scale.scale:.7f}"
        )
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, shared, evidence=evidence)
    signature = _read(material, reference, judgements, scale)
    return Verdict(
        NAME,
        Status.FAIL,
        signature.sentence,
        measurements,
        limits,
        shared,
        pattern=signature.pattern,
        first_wrong=signature.where,
        evidence=evidence | {"modules": describe_modules(material.divergence) if material.divergence else []},
    )


def _read(
    material: Material, reference: Reference, judgements: tuple[TensorJudgement, ...], scale: ScaleJudgement
) -> Signature:
    """Prefer a cause that was recorded (an early clip) and the first wrong module over the shape of the numbers."""
    assert material.whole is not None
    clips = material.whole.step(reference.step).clips
    backwards = len(material.whole.micro_batches(reference.step))
    early = sorted({clip.after_backward for clip in clips if clip.after_backward < backwards})
    if early:
        return Signature(
            f"gradients were clipped after micro-batch {early[0]} of {backwards}, before accumulation ended: "
            "the sum that is stepped on is not the step's gradient",
            Pattern.OBJECTIVE_SCALE,
            "gradient clipping",
        )
    flipped = _read_choices(reference, MULTIPLES[material.spec.precision])
    if flipped is not None and all(j.holds for j in judgements) and scale.holds:
        return flipped
    misplaced = read_targets(reference.micro_batches)
    if misplaced is not None:
        return misplaced
    differs = forward_differs(reference, precision=material.spec.precision)
    rounded = None if differs else read_rounding(material.whole, reference, judgements)
    if rounded is not None:
        return rounded
    signature = read_gradients(judgements, scale, forward_agrees=not differs)
    if material.divergence is not None and not material.divergence.deterministic:
        sentence = (
            f"{signature.sentence}; a second pass did not repeat the step's gradients: the run is not deterministic"
        )
        return Signature(sentence, signature.pattern, signature.where)
    first = material.divergence.first if material.divergence else None
    if first is None:
        return signature
    return Signature(
        f"the forward first differs in {first.module} ({first.class_name}): on its own inputs its output is off by "
        f"{first.error:.3g}, allowed {first.threshold:.2g}; {signature.sentence}",
        _forward_pattern(reference, MULTIPLES[material.spec.precision]),
        first.module,
    )


def _read_choices(reference: Reference, multiple: float) -> Signature | None:
    wrong = [c for c in reference.choices if c.margin > 2.0 * multiple * c.floor]
    if not wrong:
        return None
    worst = max(wrong, key=lambda c: c.margin)
    return Signature(
        f"{worst.router} chose other {worst.what} than its scores say for {worst.differing} of {worst.tokens} tokens, "
        f"by a margin of up to {worst.margin:.3g} where the scores' noise is {worst.floor:.2g}; given those "
        f"{worst.what} every gradient agrees",
        Pattern.MODEL_DEFINITION,
        worst.router,
    )


def _forward_pattern(reference: Reference, multiple: float) -> Pattern:
    """What a wrong forward points to: by which tokens' losses it moves, else the module's own definition."""
    if any(micro.token_losses_seen is None for micro in reference.micro_batches):
        return Pattern.MODEL_DEFINITION
    return read_positions(reference, token_errors(reference), multiple * reference.token_floor).pattern


def _useless(judgements: tuple[TensorJudgement, ...], scale: ScaleJudgement) -> str | None:
    middle = median(j.limit for j in judgements) if judgements else float("inf")
    if scale.limit > USEFUL_SCALE_LIMIT or middle > USEFUL_TENSOR_LIMIT:
        return (
            f"nothing differs beyond the noise, but the noise would hide a scale error of {scale.limit:.2g} "
            f"and, in half of the tensors, one of {middle:.2g}; run with precision=float32"
        )
    return None


def _scale_measurement(scale: ScaleJudgement) -> Measurement:
    return Measurement("pooled scale", abs(scale.scale - 1.0), scale.threshold, scale.holds, scale.floor, scale.limit)


def _choice_measurement(choice: ChoiceError, multiple: float) -> Measurement:
    """A router's or an indexer's choice may differ only where its float64 score lost by less than the score's noise."""
    threshold = 2.0 * multiple * choice.floor
    name = f"{choice.what} chosen by {choice.router} ({choice.differing} of {choice.tokens} tokens differ)"
    holds = choice.margin <= threshold
    return Measurement(name, choice.margin, threshold, holds, choice.floor, threshold, unit="score")


def _measurement(judgement: TensorJudgement) -> Measurement:
    norm = judgement.difference.norm or 1.0
    block = None if judgement.worst_block is None else str(judgement.worst_block)
    return Measurement(
        judgement.name,
        judgement.difference.error / norm,
        judgement.threshold / norm,
        judgement.holds,
        judgement.floor.total / norm,
        judgement.limit,
        block,
    )


def _blocks(judgement: TensorJudgement, reference: Reference, multiple: float) -> dict[str, object] | None:
    """The worst blocks of one tensor: index, ‖·‖ difference, reference norm, floor and threshold, by index."""
    errors, norms = judgement.difference.block_errors, judgement.difference.block_norms
    if not errors.numel():
        return None
    floors = judgement.floor.blocks
    ratios = errors / (multiple * floors).clamp(min=math.ulp(0.0))
    worst = sorted(ratios.argsort(descending=True)[:SHOWN_BLOCKS].tolist())
    return {
        "kind": reference.gradients[judgement.name].blocks.kind,
        "count": errors.numel(),
        "worst": [[k, float(errors[k]), float(norms[k]), float(floors[k]), multiple * float(floors[k])] for k in worst],
    }


CHECK = Check(NAME, "every gradient is that of the loss's definition", __doc__ or "", judge, reference=True)
