"""N micro-batches give the gradient of one batch of the same rows.

Reference: an identity, which holds for an objective with a global denominator: a second run of the framework on the
same rows without accumulation (or, for a run without, with its rows split). No model code of ours is involved; the
noise floor is that of the reference step.
Catches: a mean of micro-batch means, undivided or doubly divided losses, gradients cleared or clipped between
micro-batches.
Cannot see: faults that do not depend on the split. Where the two runs chose other experts, or other keys of sparse
attention, for a token, their gradients need not agree: inconclusive, unless they do.
Cost: one more framework run of one step.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import torch

from checks.captures.blocks import WHOLE
from checks.captures.capture import Capture, TensorRecord
from checks.captures.differences import Difference, Projection, difference, project, sketch_difference
from checks.check import Check, inconclusive
from checks.diagnosis.signatures import read_gradients
from checks.errors import NotRecorded
from checks.material import Material
from checks.references.batch import UnreadableBatch, read_step
from checks.references.reference import Reference
from checks.references.same_choices import RecordedStep, compare_choices, say_other_choices
from checks.roles import Role
from checks.spec import RunSpec
from checks.tolerance import MULTIPLES, judge_scale, judge_tensor, limits_by_kind
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.accumulation"


def judge(material: Material) -> Verdict:
    split, merged = material.capture, material.capture_of(Role.MERGED)
    if split is None or merged is None:
        return inconclusive(NAME, material.why_not() if split is None else "the run on merged rows left no capture")
    reference = material.first_reference()
    if reference is None:
        return inconclusive(NAME, material.why_not())
    step = reference.step
    if step not in merged.steps:
        return inconclusive(NAME, f"the run on merged rows did not record step {step}")
    if _rows(split, step) != _rows(merged, step):
        return inconclusive(
            NAME,
            "the two runs trained on different rows, so the identity says nothing; give a data set with a fixed order",
        )
    verdict = _compare(split, merged, reference, material.spec)
    if verdict.status is not Status.FAIL:
        return verdict
    if reference.auxiliary:
        return inconclusive(
            NAME,
            "the run adds a load-balancing loss, which is not the same over micro-batches as over one batch, so that "
            "the gradients need not agree; step.gradients and step.moe judge it, or set router_aux_loss_coef to 0",
            measurements=verdict.measurements,
            detection_limits=verdict.detection_limits,
            evidence=verdict.evidence,
        )
    return _excuse_choices(material, reference, verdict)


def _excuse_choices(material: Material, reference: Reference, failed: Verdict) -> Verdict:
    """Inconclusive where the two runs chose otherwise for a token; `failed` where they did not."""
    split, merged = material.capture, material.capture_of(Role.MERGED)
    assert split is not None
    assert merged is not None
    step = reference.step
    corpus = None if material.dataset is None else material.dataset.corpus
    try:
        theirs = RecordedStep(merged, step, read_step(merged, step, corpus=corpus))
    except UnreadableBatch:
        return failed
    others = compare_choices(RecordedStep(split, step, reference.micro_batches), theirs)
    if not others:
        return failed
    return inconclusive(
        NAME,
        f"between the two runs {say_other_choices(others)}, so that their gradients need not agree, and they do not; "
        "step.gradients judges each choice and the gradient that follows from it",
        measurements=failed.measurements,
        detection_limits=failed.detection_limits,
        evidence=failed.evidence,
    )


def _compare(split: Capture, merged: Capture, reference: Reference, spec: RunSpec) -> Verdict:
    step, multiple = reference.step, MULTIPLES[spec.precision]
    ours, theirs = split.tensors(step, "gradient"), merged.tensors(step, "gradient")
    differences = {
        name: compare_records(ours[name], theirs[name])
        for name in reference.gradients
        if name in ours and name in theirs
    }
    lost = sorted(set(ours) ^ set(theirs))
    # Both sides carry noise, so the floor of their difference is the sum of two.
    judgements = tuple(
        judge_tensor(name, d, reference.floor(name), multiple=2.0 * multiple) for name, d in differences.items()
    )
    variants = [variant.differences for variant in reference.variants]
    scale = judge_scale(differences, variants, epsilon=reference.epsilon, multiple=2.0 * multiple)
    limits = limits_by_kind(judgements, scale)
    micro_batches = (len(split.micro_batches(step)), len(merged.micro_batches(step)))
    evidence = {
        "micro_batches": micro_batches,
        "scale": scale.scale,
        "only_in_one": lost,
        "cosines": {j.name: j.difference.cosine for j in judgements},
        "scales": {j.name: j.difference.scale for j in judgements},
    }
    measurements = (
        Measurement("pooled scale", abs(scale.scale - 1.0), scale.threshold, scale.holds, scale.floor, scale.limit),
        *(
            Measurement(
                j.name,
                j.difference.error / (j.difference.norm or 1.0),
                j.threshold / (j.difference.norm or 1.0),
                j.holds,
                j.floor.total / (j.difference.norm or 1.0),
                j.limit,
            )
            for j in judgements
        ),
    )
    if not judgements:
        return inconclusive(NAME, "the two runs have no gradient in common")
    named = f"{micro_batches[0]} micro-batches and {micro_batches[1]} of the same rows"
    if all(j.holds for j in judgements) and scale.holds and not lost:
        worst = max((j.difference.relative for j in judgements if j.difference.norm), default=0.0)
        sentence = f"{named} give the same {len(judgements)} gradients, within {worst:.2g}"
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    if lost:
        sentence = f"{named} give gradients for different parameters, first {lost[0]}"
    else:
        signature = read_gradients(judgements, scale, forward_agrees=None)
        sentence = f"{named} give different gradients: {signature.sentence}".replace(
            "the reference", "the merged batch's"
        )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        pattern=Pattern.OBJECTIVE_SCALE,
        first_wrong="gradient accumulation",
        evidence=evidence,
    )


def compare_records(a: TensorRecord, b: TensorRecord) -> Difference:
    """The difference of two recorded tensors, by whatever both have in common."""
    full_a, full_b = a.read("full"), b.read("full")
    if full_a is not None and full_b is not None:
        return difference(full_a, project(b.name, full_b, WHOLE))
    sketch_a, sketch_b = a.read("sketch"), b.read("sketch")
    if sketch_a is None or sketch_b is None:
        raise NotRecorded(f"{a.name} was recorded as a sketch in neither or only one of the captures")
    empty = torch.empty(0, dtype=torch.float64)
    return sketch_difference(sketch_a, a.norm, None, Projection(b.name, WHOLE, None, sketch_b, b.norm, empty))


def _rows(capture: Capture, step: int) -> Counter[tuple[int, ...]]:
    """The step's rows as token tuples, padding taken off by the labels' and mask's last real token."""
    rows: Counter[tuple[int, ...]] = Counter()
    for micro in capture.micro_batches(step):
        tensors = capture.micro_batch_tensors(step, "batch", micro.index)
        fields = {name.rsplit("/", 1)[-1]: record.read("full") for name, record in tensors.items()}
        ids, mask = fields.get("input_ids"), fields.get("attention_mask")
        if ids is None:
            continue
        if mask is None or mask.shape != ids.shape:
            position_ids = fields.get("position_ids")
            rows.update(_documents(ids, position_ids))
            continue
        rows.update(tuple(row[kept.bool()].tolist()) for row, kept in zip(ids, mask, strict=True))
    return rows


def _documents(ids: torch.Tensor, position_ids: torch.Tensor | None) -> list[tuple[int, ...]]:
    """Rows of a flattened batch cut where positions restart, so that two ways of packing the same rows compare
    equal.
    """
    if position_ids is None or position_ids.shape != ids.shape:
        return [tuple(row.tolist()) for row in ids]
    parts = []
    for row, positions in zip(ids, position_ids, strict=True):
        starts = [*(positions == 0).nonzero().flatten().tolist(), row.numel()]
        parts += [tuple(row[a:b].tolist()) for a, b in pairwise(starts)]
    return parts


CHECK = Check(
    NAME,
    "N micro-batches give the gradient of one batch",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.MERGED),
    reference=True,
    applies=lambda spec: None if spec.batch * spec.accumulation > 1 else "one row a step cannot be split",
)
