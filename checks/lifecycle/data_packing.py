"""Documents that share a packed row are trained as if each stood alone.

Reference: each document by itself, in float64. Where documents begin is found in the row's tokens, from the data set
rendered by an independent template, never from the framework's position ids or masks: else a leak leaks in both.
Catches: attention, recurrent state or convolutions that cross documents, positions that do not restart, targets
across a boundary, boundaries that the framework lost.
Cannot see: a document that was dropped or truncated before it was packed (`data.coverage`).
Cost: shared with the other step checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from checks.architecture.step_loss import largest, token_errors
from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.batch import Document, MicroBatch
from checks.references.kept import IGNORED
from checks.references.reference import Reference
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "data.packing"


@dataclass(frozen=True)
class DocumentError:
    """One document's largest token error, in nats, and its place in its row (0: the first)."""

    micro_batch: int
    document: Document
    place: int
    error: float


def judge(material: Material) -> Verdict:
    if material.capture is None or not material.batches:
        return inconclusive(NAME, material.why_not())
    step = min(material.batches)
    batches = material.batches[step]
    unbounded = [micro.unbounded for micro in batches if micro.boundaries != "data"]
    if unbounded:
        return inconclusive(NAME, f"where documents begin cannot be told from the data: {unbounded[0]}")
    if all(len(micro.documents) <= micro.input_ids.shape[0] for micro in batches):
        return inconclusive(
            NAME, "no row of the captured step holds two documents; lower seq_len or give shorter documents"
        )
    reference = material.references.get(step)
    if reference is None:
        return inconclusive(NAME, material.why_not(step))
    if any(micro.token_losses_seen is None for micro in batches):
        return inconclusive(NAME, "the per-token losses were not recorded")
    return _compare(material, reference)


def _compare(material: Material, reference: Reference) -> Verdict:
    floor = reference.token_floor
    threshold = MULTIPLES[material.spec.precision] * floor
    errors = tuple(_document_errors(reference))
    first = largest([torch.tensor([e.error for e in errors if e.place == 0], dtype=torch.float64)])
    later = largest([torch.tensor([e.error for e in errors if e.place > 0], dtype=torch.float64)])
    restarts = tuple(_wrong_positions(reference.micro_batches))
    crossing = sum(int((m.counted & (m.next_tokens == IGNORED)).sum()) for m in reference.micro_batches)
    limit = threshold + floor
    measurements = (
        Measurement("first documents of a row", first, threshold, first <= threshold, floor, limit, unit="nats"),
        Measurement("later documents of a row", later, threshold, later <= threshold, floor, limit, unit="nats"),
        Measurement("targets across a boundary", float(crossing), 0.0, crossing == 0, unit="count"),
        Measurement("documents whose positions do not restart", float(len(restarts)), 0.0, not restarts, unit="count"),
    )
    evidence = {
        "documents": [[e.micro_batch, e.document.row, e.document.start, e.document.stop, e.error] for e in errors],
        "wrong_positions": list(restarts),
        "reference": reference.source.name,
    }
    mean = reference.loss or 1.0
    limits = {"token of a document": limit / abs(mean)}
    shared = reference.source.shared
    if all(m.holds for m in measurements):
        rows = sum(micro.input_ids.shape[0] for micro in reference.micro_batches)
        sentence = (
            f"{len(errors)} documents in {rows} rows are trained as if each stood alone, "
            f"within {max(first, later):.2g} nats"
        )
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, shared, evidence=evidence)
    sentence, where = _describe(errors, first, later, threshold, restarts, crossing)
    first_module = material.divergence.first.module if material.divergence and material.divergence.first else where
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        shared,
        pattern=Pattern.SEQUENCE_LENGTH,
        first_wrong=first_module,
        evidence=evidence,
    )


def _document_errors(reference: Reference) -> Iterator[DocumentError]:
    for index, (micro, error) in enumerate(zip(reference.micro_batches, token_errors(reference), strict=True)):
        places: dict[int, int] = {}
        for document in micro.documents:
            place = places.get(document.row, 0)
            places[document.row] = place + 1
            part = error[document.row, document.start : document.stop]
            yield DocumentError(index, document, place, float(part.max()))


def _wrong_positions(batches: tuple[MicroBatch, ...]) -> Iterator[str]:
    """Documents whose position ids are not 0, 1, 2, …; a batch without position ids leaves them to the model."""
    for index, micro in enumerate(batches):
        if micro.position_ids is None or micro.position_ids.shape != micro.input_ids.shape:
            continue
        for document in micro.documents:
            seen = micro.position_ids[document.row, document.start : document.stop]
            if not torch.equal(seen, torch.arange(seen.numel(), dtype=seen.dtype)):
                where = f"micro-batch {index}, row {document.row}, token {document.start}"
                yield f"{where}: positions start at {int(seen[0])}"


def _describe(
    errors: tuple[DocumentError, ...],
    first: float,
    later: float,
    threshold: float,
    restarts: tuple[str, ...],
    crossing: int,
) -> tuple[str, str]:
    wrong = [e for e in errors if not e.error <= threshold]
    if restarts:
        return f"positions do not restart at {len(restarts)} documents ({restarts[0]})", "position_ids"
    if wrong and first <= threshold:
        start = wrong[0]
        place = f"micro-batch {start.micro_batch}, row {start.document.row}, token {start.document.start}"
        return (
            "documents see each other: token losses differ only from the second packed document on, in "
            f"{len(wrong)} of {len(errors)} documents, by up to {later:.3g} nats (allowed {threshold:.2g}); "
            f"first at {place}"
        ), "attention mask"
    if crossing:
        return f"{crossing} targets lie across a document boundary", "labels"
    return (
        f"{len(wrong)} of {len(errors)} documents differ, first documents of a row too "
        f"(by up to {max(first, later):.3g} nats, allowed {threshold:.2g}): "
        "the fault is not, or not only, in the packing"
    ), "model"


CHECK = Check(
    NAME,
    "packed documents are trained as if each stood alone",
    __doc__ or "",
    judge,
    reference=True,
    applies=lambda spec: None if spec.packs else "the run does not pack (packing=false)",
)
