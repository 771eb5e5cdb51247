"""The rule that turns numbers into a verdict: the error may not exceed a small multiple of the reference's own noise.

The reference is computed in float64 and, in several forms that must not matter, in the run's own precision; the
largest deviation of those forms is the *noise floor*. The same idea judges FlashAttention's kernels
(https://github.com/Dao-AILab/flash-attention/blob/main/tests/test_flash_attn.py: the error against a float32
reference may be a small multiple of that of a plain half-precision implementation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from checks.captures.blocks import kind_of
from checks.captures.differences import Difference, Projection

VERSION = "2026.11"
"""Changes whenever a constant below does; stored with every verdict."""

MULTIPLES: Mapping[str, float] = {"float32": 8.0, "bf16": 4.0, "bf16_params": 4.0, "fp16": 4.0}
"""Error allowed, in floors. Calibrated by `python -m benchmarks.calibration`; see docs/tolerance.md for the figures."""

EPSILON: Mapping[str, float] = {"float32": 2.0**-24, "bf16": 2.0**-9, "bf16_params": 2.0**-9, "fp16": 2.0**-12}
"""Unit round-off of the compute dtype."""

USEFUL_SCALE_LIMIT = 0.05
"""A check that would miss a pooled scale error of 5 % is worth nothing: inconclusive."""

USEFUL_TENSOR_LIMIT = 1.0
"""Likewise when half of the tensors could be wrong by their own size unseen."""


USEFUL_TOKEN_LIMIT = 0.25
"""Likewise when a token's loss could be off by a quarter of the mean loss."""


@dataclass(frozen=True)
class Floor:
    """The noise of one tensor, in the tensor's own unit.

    `error`: the largest ‖variant − reference‖; `absolute`: round-off of the summands, so that a gradient that is zero
    in exact arithmetic has a floor; `blocks`: (blocks,) the same by block; `scale`: the largest |c − 1| of a variant.
    """

    error: float
    absolute: float
    blocks: torch.Tensor

    @property
    def total(self) -> float:
        return self.error + self.absolute


@dataclass(frozen=True)
class TensorJudgement:
    """One tensor's error against its threshold, whole and by its worst block; `limit` is relative to the tensor."""

    name: str
    difference: Difference
    floor: Floor
    threshold: float
    worst_block: int | None
    block_ratio: float
    """largest block error / block threshold, 0 without blocks"""
    limit: float
    block_limit: float | None

    @property
    def ratio(self) -> float:
        """Error in thresholds: above 1 the tensor is wrong."""
        return max(_ratio(self.difference.error, self.threshold), self.block_ratio)

    @property
    def holds(self) -> bool:
        return self.ratio <= 1.0


@dataclass(frozen=True)
class ScaleJudgement:
    """The signed scale pooled over all tensors: c = Σ⟨a, b⟩ / Σ⟨b, b⟩ against 1."""

    scale: float
    floor: float
    threshold: float

    @property
    def holds(self) -> bool:
        return abs(self.scale - 1.0) <= self.threshold

    @property
    def limit(self) -> float:
        return self.threshold + self.floor


def measure_floor(
    reference: Projection, variants: Iterable[Difference], *, epsilon: float, mean_square: float
) -> Floor:
    """The floor of one tensor from its variants.

    `mean_square` is the mean square of an element over *all* tensors of the kind: the size of the summands, for the
    absolute term ε · (‖b‖ + √(n · mean_square)).
    """
    differences = tuple(variants)
    error = max((d.error for d in differences), default=0.0)
    numel = reference.full.numel() if reference.full is not None else 0
    absolute = epsilon * (reference.norm + math.sqrt(numel * mean_square))
    if not reference.blocks.count:
        return Floor(error, absolute, torch.empty(0, dtype=torch.float64))
    share = math.sqrt(1.0 / reference.blocks.count)
    blocks = torch.full_like(reference.block_norms, error * share)
    for d in differences:
        blocks = torch.maximum(blocks, d.block_errors)
    blocks += epsilon * (reference.block_norms + math.sqrt(numel * mean_square) * share)
    return Floor(error, absolute, blocks)


def judge_tensor(name: str, difference: Difference, floor: Floor, *, multiple: float) -> TensorJudgement:
    """Hold one tensor's error against `multiple` floors, whole and block by block."""
    threshold = multiple * floor.total
    worst, block_ratio, block_limit = None, 0.0, None
    if difference.block_errors.numel():
        ratios = difference.block_errors / (multiple * floor.blocks).clamp(min=math.ulp(0.0))
        worst = int(ratios.argmax())
        block_ratio = float(ratios[worst])
        block_limit = _block_limit(difference.block_norms, floor.blocks, multiple=multiple)
    norm = difference.norm
    limit = (multiple + 1.0) * floor.total / norm if norm > 0.0 else math.inf
    return TensorJudgement(name, difference, floor, threshold, worst, block_ratio, limit, block_limit)


def judge_scale(
    differences: Mapping[str, Difference],
    variants: Iterable[Mapping[str, Difference]],
    *,
    epsilon: float,
    multiple: float,
) -> ScaleJudgement:
    """Hold the pooled signed scale against that of the variants: what cosine, and bf16 tensor by tensor, cannot see."""
    floor = max((abs(pooled_scale(variant) - 1.0) for variant in variants), default=0.0)
    return ScaleJudgement(pooled_scale(differences), floor, multiple * (floor + epsilon))


def pooled_scale(differences: Mapping[str, Difference]) -> float:
    """Σ⟨a, b⟩ / Σ⟨b, b⟩ over the tensors; 1 when every reference is zero."""
    square = math.fsum(d.square for d in differences.values())
    return math.fsum(d.dot for d in differences.values()) / square if square > 0.0 else 1.0


def limits_by_kind(judgements: Iterable[TensorJudgement], scale: ScaleJudgement) -> dict[str, float]:
    """Kind → the smallest relative fault that would have been seen in the worst tensor of that kind.

    Tensors without a gradient in exact arithmetic (below their own floor) carry no signal and are left out.
    """
    limits: dict[str, float] = {"scale of all": scale.limit}
    for judgement in judgements:
        if judgement.difference.norm <= judgement.floor.total:
            continue
        kind = kind_of(judgement.name)
        limits[kind] = max(limits.get(kind, 0.0), judgement.limit)
        if judgement.block_limit is not None:
            key = f"{kind} by block"
            limits[key] = max(limits.get(key, 0.0), judgement.block_limit)
    return limits


def _block_limit(norms: torch.Tensor, floors: torch.Tensor, *, multiple: float) -> float | None:
    """The worst limit among the blocks that carry signal (norm above their floor)."""
    seen = norms > floors
    if not bool(seen.any()):
        return None
    return float(((multiple + 1.0) * floors[seen] / norms[seen]).max())


def _ratio(error: float, threshold: float) -> float:
    if threshold > 0.0:
        return error / threshold
    return 0.0 if error == 0.0 else math.inf
