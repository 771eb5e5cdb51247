"""What a step of several ranks has in common with the same step of one process, measured against its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from checks.captures.blocks import WHOLE
from checks.captures.capture import TensorRecord
from checks.captures.differences import Difference, Projection, difference, project, sketch_difference
from checks.errors import NotRecorded
from checks.parallel.joining import RankBatch
from checks.parallel.parts import part_error
from checks.parallel.runs import Runs
from checks.parallel.tensors import JoinedTensor, Part
from checks.references.kept import IGNORED
from checks.references.reference import Reference
from checks.tolerance import Floor, ScaleJudgement, TensorJudgement, judge_scale, judge_tensor, measure_floor

BOTH_SIDES = 2.0
"""Both runs carry noise, so that the floor of their difference is the sum of two."""

SAME_START = 1e-12
"""Sketches of equal tensors are equal up to the order in which their parts are added."""


@dataclass(frozen=True)
class Gradients:
    """`judgements`: one a parameter; `only_in_one`: parameters that have a gradient in one run only."""

    judgements: tuple[TensorJudgement, ...]
    scale: ScaleJudgement
    only_in_one: tuple[str, ...]


def sum_epsilon(runs: Runs, epsilon: float) -> float:
    """The round-off of a sum as long as the largest dimension of any parameter: ε · √n.

    The bound that holds with high probability for a sum of n terms whose errors are independent
    (https://doi.org/10.1137/18M1226312, a probabilistic analysis of rounding errors).
    """
    shapes = [tensor.global_shape for tensor in runs.single.tensors("gradient").values()]
    return epsilon * math.sqrt(max((size for shape in shapes for size in shape), default=1))


def compare_gradients(runs: Runs, reference: Reference | None, *, epsilon: float, multiple: float) -> Gradients:
    """The joined gradients against those of one process, with the noise floor of the reference step where there is one,
    else with `epsilon`.
    """
    ours, theirs = runs.divided.tensors("gradient"), runs.single.tensors("gradient")
    wholes = {name: tensor.parts[0].record for (name, _), tensor in theirs.items()}
    joined = {name: tensor for (name, _), tensor in ours.items()}
    projections = {name: _project(record) for name, record in wholes.items() if name in joined}
    differences = {name: _difference(joined[name], projection) for name, projection in projections.items()}
    squares = math.fsum(record.norm**2 for record in wholes.values())
    elements = sum(math.prod(record.global_shape) for record in wholes.values())
    mean_square = squares / max(elements, 1)

    def floor(name: str) -> Floor:
        if reference is not None and name in reference.gradients:
            return reference.floor(name)
        return measure_floor(projections[name], (), epsilon=epsilon, mean_square=mean_square)

    judgements = tuple(
        judge_tensor(name, each, floor(name), multiple=BOTH_SIDES * multiple) for name, each in differences.items()
    )
    variants = [] if reference is None else [variant.differences for variant in reference.variants]
    scale = judge_scale(differences, variants, epsilon=epsilon, multiple=BOTH_SIDES * multiple)
    return Gradients(judgements, scale, tuple(sorted(joined.keys() ^ wholes.keys())))


def compare_start(runs: Runs) -> tuple[tuple[JoinedTensor, tuple[Part, ...]], ...]:
    """The parameters that are not the same before the step, with the parts that differ, all where none can be told."""
    ours, theirs = runs.divided.tensors("parameter_before"), runs.single.tensors("parameter_before")
    found = []
    for key, tensor in ours.items():
        if key not in theirs:
            continue
        whole = theirs[key].parts[0].record
        wrong = tuple(part for part in tensor.parts if not part.partial and part_error(part, whole) > 0.0)
        a, b = tensor.read("sketch"), whole.read("sketch")
        moved = a is not None and b is not None and float((a - b).norm()) > SAME_START * float(b.norm())
        if wrong or moved:
            found.append((tensor, wrong or tensor.parts))
    return tuple(found)


def compare_tokens(runs: Runs) -> Mapping[int, float] | None:
    """Rank → the largest deviation of a token's loss, in nats; None where the two runs cannot be laid together.

    A rank that computes no loss (a pipeline's earlier stage) has no entry, one that computes those of some positions
    (context parallel) is held to these; a position that the loss of one process counts and no rank computes deviates by
    all of its loss, on each rank that has its row.
    """
    found: dict[int, float] = {}
    step = runs.divided
    for place in range(step.dp_size):
        sharers = {rank: step.batches_of(rank) for rank, theirs in step.sharing.items() if theirs == place}
        for index, single in enumerate(runs.single.batches[place :: step.dp_size]):
            own = {rank: batches[index] for rank, batches in sharers.items() if index < len(batches)}
            errors = _compare_rows(own, single, divided=step.divides_positions)
            if errors is None:
                return None
            found |= {rank: max(found.get(rank, 0.0), error) for rank, error in errors.items()}
    return found or None


def _compare_rows(own: Mapping[int, RankBatch], single: RankBatch, *, divided: bool) -> dict[int, float] | None:
    """One micro-batch on the ranks that share it; `divided`: each of them computes some of its positions."""
    whole, ids = single.token_losses, single.input_ids
    if whole is None or ids is None:
        return None
    errors: dict[int, float] = {}
    computed = torch.zeros_like(whole, dtype=torch.bool)
    for rank, batch in own.items():
        if batch.token_losses is None:
            continue
        a = _fit(batch.token_losses, like=whole)
        seen = None if batch.input_ids is None else _fit(batch.input_ids, like=ids)
        if a is None or seen is None or not torch.equal(seen, ids):
            return None
        targets = None if batch.targets is None else _fit(batch.targets, like=whole)
        counts = targets != IGNORED if divided and targets is not None else torch.ones_like(computed)
        computed |= counts
        errors[rank] = float((a - whole).abs()[counts].max()) if bool(counts.any()) else 0.0
    left = float(whole.abs()[~computed].max()) if not bool(computed.all()) else 0.0
    return {rank: max(error, left) for rank, error in errors.items()}


def _fit(value: torch.Tensor, *, like: torch.Tensor) -> torch.Tensor | None:
    """The positions that both have, where ranks that share positions pad rows further; None for other rows."""
    if value.dim() != 2 or like.dim() != 2:
        return value if value.shape == like.shape else None
    if value.shape[0] != like.shape[0] or value.shape[1] < like.shape[1]:
        return None
    return value[:, : like.shape[1]]


def _project(record: TensorRecord) -> Projection:
    full = record.read("full")
    if full is not None:
        return project(record.name, full, WHOLE)
    sketch = record.read("sketch")
    if sketch is None:
        raise NotRecorded(f"{record.name} was recorded neither in full nor as a sketch")
    return Projection(record.name, WHOLE, None, sketch, record.norm, torch.empty(0, dtype=torch.float64))


def _difference(tensor: JoinedTensor, reference: Projection) -> Difference:
    full = tensor.read("full")
    if full is not None:
        return difference(full, reference)
    sketch = tensor.read("sketch")
    if sketch is None:
        raise NotRecorded(f"{tensor.name} was recorded neither in full nor as a sketch by every rank")
    norm = tensor.norm
    return sketch_difference(sketch, float(sketch.norm()) if math.isnan(norm) else norm, None, reference)
