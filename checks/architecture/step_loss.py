"""The loss is −log p of the right next token, token by token, and their mean over the counted tokens.

Reference: the loss from its definition, on the reference model in float64, each document alone. The target of
position t must be token t + 1 of the same document, whichever side does the shifting.
Catches: labels shifted twice or not at all, a wrong position, window, scale or rope from some position on, a leak
between documents, a term that the objective does not have, labels that are smoothed (`hf-label-smoothing-ga`). Where a
trainer computes its loss out of sight, the targets are those that the data imply.
Cannot see: which tokens *should* count (`data.mask`), faults that keep every token's loss within the printed limit.
Cost: one float64 step and the noise variants, shared with the other step checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from checks.check import Check, inconclusive
from checks.diagnosis.signatures import Signature
from checks.diagnosis.smoothing import read_smoothing
from checks.material import Material
from checks.references.batch import MicroBatch
from checks.references.kept import IGNORED
from checks.references.reference import Reference
from checks.tolerance import MULTIPLES, USEFUL_TOKEN_LIMIT
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.loss"
OFFSETS = (2, 0, 3, -1)
"""Distances of a wrong target that have a name: shifted twice, not at all, three times, backwards."""


def judge(material: Material) -> Verdict:
    if material.capture is None or not material.batches:
        return inconclusive(NAME, material.why_not())
    step = min(material.batches)
    misplaced = read_targets(material.batches[step])
    if misplaced is not None:
        wrong, counted = count_misplaced(material.batches[step])
        share = Measurement("targets that are not the next token", float(wrong), 0.0, False, unit="count")
        return Verdict(
            NAME,
            Status.FAIL,
            misplaced.sentence,
            (share,),
            pattern=misplaced.pattern,
            first_wrong=misplaced.where,
            evidence={
                "wrong": wrong,
                "counted": counted,
                "tokens": [_token_rows(m) for m in material.batches[step]],
            },
        )
    masked = _read_mask(material.batches[step])
    if masked is not None:
        return masked
    reference = material.references.get(step)
    if reference is None:
        return inconclusive(NAME, material.why_not(step))
    if any(micro.token_losses_seen is None for micro in reference.micro_batches):
        return inconclusive(NAME, "the per-token losses were not recorded, so they cannot be compared")
    return _compare(material, reference)


def _read_mask(batches: tuple[MicroBatch, ...]) -> Verdict | None:
    """Fail where the loss counts other positions than the batch's own labels ask for."""
    wrong, asked, counted, first = 0, 0, 0, ""
    for index, micro in enumerate(batches):
        if micro.asked is None:
            return None
        differs = (micro.asked != micro.counted).nonzero().tolist()
        if differs and not first:
            row, position = differs[0]
            first = f"micro-batch {index}, row {row}, position {position}"
        wrong += len(differs)
        asked += int(micro.asked.sum())
        counted += int(micro.counted.sum())
    if wrong == 0:
        return None
    return Verdict(
        NAME,
        Status.FAIL,
        f"the loss counts {counted} tokens and the batch's labels ask for {asked}: "
        f"{wrong} positions differ, first {first}",
        (Measurement("positions counted otherwise than asked", float(wrong), 0.0, False, unit="count"),),
        pattern=Pattern.LOSS_MASK,
        first_wrong="labels",
        evidence={
            "counted": counted,
            "asked": asked,
            "wrong": wrong,
            "tokens": [_token_rows(micro) for micro in batches],
        },
    )


def _compare(material: Material, reference: Reference) -> Verdict:
    multiple = MULTIPLES[material.spec.precision]
    threshold = multiple * reference.token_floor
    errors = token_errors(reference)
    worst = largest(errors)
    mean = float(
        torch.cat(
            [losses[m.counted] for losses, m in zip(reference.token_losses, reference.micro_batches, strict=True)]
        ).mean()
    )
    unit = "nats"
    assert material.capture is not None
    scalars = [record.backward for record in material.capture.micro_batches(reference.step)]
    measurements = [
        Measurement(
            "largest token error",
            worst,
            threshold,
            worst <= threshold,
            reference.token_floor,
            threshold + reference.token_floor,
            unit=unit,
        )
    ]
    if all(scalar is not None for scalar in scalars):
        measurements.append(_objective(scalars, reference, multiple))
    limits = {"token": (threshold + reference.token_floor) / max(mean, 1e-12)}
    evidence = {
        "loss": {"framework": sum(s for s in scalars if s is not None), "reference": reference.loss},
        "tokens": [
            _token_rows(m, losses) for m, losses in zip(reference.micro_batches, reference.token_losses, strict=True)
        ],
        "lifted_casts": list(reference.lifted_casts),
        "notes": list(reference.notes),
    }
    shared = reference.source.shared
    if all(m.holds for m in measurements) and limits["token"] > USEFUL_TOKEN_LIMIT:
        sentence = (
            "nothing differs beyond the noise, but the noise would hide an error of "
            f"{limits['token']:.2g} of a token's loss; run with precision=float32, "
            "or a shorter seq_len where attention selects its tokens"
        )
        return Verdict(NAME, Status.INCONCLUSIVE, sentence, tuple(measurements), limits, shared, evidence=evidence)
    if all(m.holds for m in measurements):
        sentence = f"{reference.denominator} tokens agree within {worst:.2g} nats (allowed {threshold:.2g})"
        return Verdict(NAME, Status.PASS, sentence, tuple(measurements), limits, shared, evidence=evidence)
    if not worst <= threshold:
        signature = read_positions(reference, errors, threshold)
    else:
        objective = measurements[-1]
        smoothed = read_smoothing(material.capture, material.batches, allowed=objective.threshold)
        signature = smoothed or Signature(
            f"every token's loss agrees, but the scalar that is back-propagated is off by {objective.value:.3g} of "
            "itself: it is not their mean over the counted tokens (see step.denominator)",
            Pattern.OBJECTIVE_SCALE,
            "loss denominator",
        )
    where = material.divergence.first.module if material.divergence and material.divergence.first else signature.where
    return Verdict(
        NAME, Status.FAIL, signature.sentence, tuple(measurements), limits, shared, signature.pattern, where, evidence
    )


def _objective(scalars: list[float | None], reference: Reference, multiple: float) -> Measurement:
    total = sum(scalar for scalar in scalars if scalar is not None)
    size = max(abs(reference.loss), 1e-12)
    floor = reference.loss_floor / size
    error = abs(total - reference.loss) / size
    return Measurement("objective", error, multiple * floor, error <= multiple * floor, floor, (multiple + 1) * floor)


def forward_differs(reference: Reference, *, precision: str) -> bool:
    """Whether token losses are off although their targets are right: then some module is wrong."""
    if any(micro.token_losses_seen is None for micro in reference.micro_batches):
        return True
    if read_targets(reference.micro_batches) is not None:
        return False
    return not largest(token_errors(reference)) <= MULTIPLES[precision] * reference.token_floor


def largest(errors: Sequence[torch.Tensor]) -> float:
    """The largest of all errors; NaN where one is not a number, which `max` of Python would pass over."""
    found = [error.max() for error in errors if error.numel()]
    return float(torch.stack(found).max()) if found else 0.0


def token_errors(reference: Reference) -> list[torch.Tensor]:
    """One (B, S) tensor a micro-batch: |framework − reference| in nats, 0 where not counted."""
    found = []
    for micro, losses in zip(reference.micro_batches, reference.token_losses, strict=True):
        seen = micro.token_losses_seen if micro.token_losses_seen is not None else losses
        found.append(torch.where(micro.targets != IGNORED, (seen.double() - losses).abs(), 0.0))
    return found


def read_targets(batches: tuple[MicroBatch, ...]) -> Signature | None:
    """Name the distance at which the loss takes its targets, None when every target is the next token."""
    wrong, counted = count_misplaced(batches)
    if wrong == 0:
        return None
    scores = {offset: _matches(batches, offset) for offset in OFFSETS}
    best = max(scores, key=lambda offset: scores[offset])
    names = {
        2: "labels are shifted twice: the loss at position t is taken against token t + 2",
        0: "labels are not shifted: the loss at position t is taken against token t itself",
        3: "labels are shifted three times: the loss at position t is taken against token t + 3",
        -1: "labels are shifted the wrong way: the loss at position t is taken against token t − 1",
    }
    if scores[best] > 0.9 * counted:
        return Signature(f"{names[best]} ({wrong} of {counted} targets)", Pattern.LOSS_MASK, "labels")
    crossing = sum(int((m.counted & (m.next_tokens == IGNORED)).sum()) for m in batches)
    if crossing == wrong:
        return Signature(
            f"{crossing} counted targets lie across a document boundary: the last token of a document is trained to "
            "predict the first of the next",
            Pattern.LOSS_MASK,
            "labels",
        )
    return Signature(f"{wrong} of {counted} counted targets are not the next token", Pattern.LOSS_MASK, "labels")


def count_misplaced(batches: tuple[MicroBatch, ...]) -> tuple[int, int]:
    """How many counted targets are not the next token of their document, and how many are counted."""
    told = [micro for micro in batches if not micro.scored]  # a score is of a row, and has no next token
    wrong = sum(int((m.counted & (m.targets_seen != m.next_tokens)).sum()) for m in told)
    return wrong, sum(int(m.counted.sum()) for m in told)


def _matches(batches: tuple[MicroBatch, ...], offset: int) -> int:
    total = 0
    for micro in batches:
        rolled = torch.roll(micro.input_ids, -offset, dims=1)
        total += int((micro.counted & (micro.targets_seen == rolled)).sum())
    return total


def read_positions(reference: Reference, errors: list[torch.Tensor], threshold: float) -> Signature:
    """Say from which position, or from which document on, the token losses differ."""
    firsts, later, first_documents = [], False, False
    for micro, error in zip(reference.micro_batches, errors, strict=True):
        seen: set[int] = set()
        for document in micro.documents:
            part = ~(error[document.row, document.start : document.stop] <= threshold)
            if bool(part.any()):
                firsts.append(int(part.nonzero()[0]))
                later |= document.row in seen
                first_documents |= document.row not in seen
            seen.add(document.row)
    count = sum(int((~(error <= threshold)).sum()) for error in errors)
    worst = largest(errors)
    numbers = f"{count} of {reference.denominator} tokens, largest {worst:.3g} nats, allowed {threshold:.2g}"
    if later and not first_documents:
        return Signature(
            f"token losses differ only from the second packed document on: a leak across documents ({numbers})",
            Pattern.SEQUENCE_LENGTH,
        )
    start = min(firsts, default=0)
    if start >= 8:
        return Signature(
            f"token losses differ from position {start} of their document on ({numbers})", Pattern.SEQUENCE_LENGTH
        )
    return Signature(f"token losses differ from the start ({numbers})", Pattern.MODEL_DEFINITION)


def _token_rows(micro: MicroBatch, losses: torch.Tensor | None = None) -> dict[str, object]:
    """One micro-batch for a reader, (B, S) each; `losses`: the reference's, None where it was not asked."""
    seen = micro.token_losses_seen
    return {
        "input_ids": micro.input_ids.tolist(),
        "counted": micro.counted.tolist(),
        "asked": None if micro.asked is None else micro.asked.tolist(),
        "documents": [[d.row, d.start, d.stop] for d in micro.documents],
        "reference": None if losses is None else losses.tolist(),
        "framework": None if seen is None else seen.tolist(),
    }


CHECK = Check(NAME, "each counted token's loss is −log p of the next token", __doc__ or "", judge, reference=True)
