"""KTO's reference point: what policy and checkpoint say of answers under prompts that they do not belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from checks.references.batch import Document, MicroBatch
from checks.references.initial import CannotCompare, refer_answers
from checks.references.kept import IGNORED
from checks.references.model import AUTOCAST, ModelSource, State, build_model, float64_mode
from checks.references.objectives.prospect import estimate_reference_point
from checks.references.step import Layout
from checks.spec import Attention, RunSpec

POLICY = "KL_logps"
"""Name under which the recorder keeps what the policy says of the mismatched answers, (rows,)."""

LAYOUTS: tuple[Layout, ...] = ("documents", "right", "left")


@dataclass(frozen=True)
class ReferencePoints:
    """One a micro-batch, float64: z, and how far its forms in the run's own precision lie from it."""

    values: tuple[float, ...]
    noise: tuple[float, ...]


def read_mismatched(micro_batches: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    """The rows on which each micro-batch's reference point is estimated, under TRL's names (`KL_input_ids` …).

    Raises:
        CannotCompare: they were not recorded.
    """
    found = []
    for index, micro in enumerate(micro_batches):
        parts = [micro.given.get(f"KL_{name}") for name in ("input_ids", "attention_mask", "completion_mask")]
        ids, mask, answer = parts
        if ids is None or mask is None or answer is None:
            raise CannotCompare(f"the mismatched answers of micro-batch {index} were not recorded")
        counted = torch.nn.functional.pad((answer[:, 1:] != 0) & (mask[:, 1:] != 0), (0, 1))
        lengths = mask.sum(dim=1).tolist()
        documents = tuple(Document(row, 0, int(length)) for row, length in enumerate(lengths))
        empty = torch.full_like(ids, IGNORED)
        found.append(MicroBatch(ids, empty, counted, None, None, documents, "mask", None))
    return tuple(found)


def estimate_points(
    policy: torch.nn.Module,
    initial: torch.nn.Module,
    mismatched: Sequence[MicroBatch],
    *,
    layout: Layout = "documents",
    autocast: torch.dtype | None = None,
) -> tuple[torch.Tensor, ...]:
    """z of each micro-batch, () of the computation's dtype."""
    ours, theirs = (refer_answers(model, mismatched, layout=layout, autocast=autocast) for model in (policy, initial))
    points = []
    for index, micro in enumerate(mismatched):
        places = [(index, row) for row in range(micro.input_ids.shape[0])]
        points.append(estimate_reference_point(torch.stack([ours[place] - theirs[place] for place in places])))
    return tuple(points)


def compute_reference_points(
    spec: RunSpec, source: ModelSource, micro_batches: Sequence[MicroBatch]
) -> ReferencePoints:
    """z of every micro-batch: of what the policy was recorded to say, and of what the checkpoint says in float64.

    Raises:
        CannotCompare: as `read_mismatched`, or what the policy says was not recorded.
    """
    mismatched = read_mismatched(micro_batches)
    recorded = []
    for index, micro in enumerate(micro_batches):
        policy = micro.given.get(POLICY)
        if policy is None or policy.shape != micro.given["KL_input_ids"].shape[:1]:
            raise CannotCompare(
                f"what the policy says of the mismatched answers of micro-batch {index} was not recorded"
            )
        recorded.append(policy.double())
    exact_model = build_model(source, spec, State({}, {}), dtype=torch.float64, attention="eager")
    with float64_mode(source):
        exact = _answer(exact_model, mismatched, layout="documents", autocast=None)
    noise = [0.0] * len(exact)
    own = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    attentions: tuple[Attention, ...] = ("eager",) if spec.attention == "eager" else ("sdpa", "eager")
    for attention in attentions:
        model = build_model(source, spec, State({}, {}), dtype=own, attention=attention)
        for layout in LAYOUTS:
            form = _answer(model, mismatched, layout=layout, autocast=AUTOCAST[spec.precision])
            noise = [max(a, float((b - c).abs().mean())) for a, b, c in zip(noise, form, exact, strict=True)]
    values = [float(estimate_reference_point(a - b)) for a, b in zip(recorded, exact, strict=True)]
    return ReferencePoints(tuple(values), tuple(noise))


def _answer(
    model: torch.nn.Module, mismatched: Sequence[MicroBatch], *, layout: Layout, autocast: torch.dtype | None
) -> list[torch.Tensor]:
    """(rows,) float64 a micro-batch: log-probabilities of the mismatched answers."""
    found = refer_answers(model, mismatched, layout=layout, autocast=autocast)
    return [
        torch.stack([found[index, row].double() for row in range(micro.input_ids.shape[0])])
        for index, micro in enumerate(mismatched)
    ]
