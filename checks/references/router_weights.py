"""The weights that routers give to the chosen experts, against the reference's for the same choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.references.batch import MicroBatch
from checks.references.routing import lay_records

SAME_TOTAL = 1e-9
"""Weights whose float64 sum varies by less over the tokens are normalised: each token's add up to one number."""

Weights = Mapping[str, Sequence[torch.Tensor]]
"""router → one (B, S, k) a micro-batch, in the order of the recorded choice"""


@dataclass(frozen=True)
class WeightError:
    """One router's recorded weights against those of the float64 reference.

    `error`: the largest difference of a weight, `floor`: the largest of any variant's. `total`: what the weights of
    every token add up to where the router normalises them, else None; `worst_total`: the recorded sum furthest from it,
    the reference's own mean sum where there is none. `largest`: the largest weight of the reference.
    """

    router: str
    tokens: int
    error: float
    floor: float
    total: float | None
    worst_total: float
    largest: float


def read_weights(capture: Capture, step: int, micro_batches: Sequence[MicroBatch]) -> Weights:
    """The recorded weights laid along (B, S), of the routers that recorded them in every micro-batch."""
    return lay_records(capture, step, micro_batches, kind="weights")


def judge_weights(recorded: Weights, exact: Weights, noisy: Sequence[Weights]) -> tuple[WeightError, ...]:
    """Each router whose weights were recorded and computed, NaN where the reference has padding."""
    return tuple(
        _judge_router(path, parts, exact[path], [weights[path] for weights in noisy if path in weights])
        for path, parts in recorded.items()
        if path in exact and all(a.shape == b.shape for a, b in zip(parts, exact[path], strict=True))
    )


def _judge_router(
    path: str,
    recorded: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    noisy: Sequence[Sequence[torch.Tensor]],
) -> WeightError:
    real = [~part.isnan().any(-1) for part in exact]
    truth = _gather(exact, real)
    seen = _gather(recorded, real)
    totals, own = truth.sum(-1), seen.sum(-1)
    normalised = bool(totals.numel()) and float(totals.max() - totals.min()) <= SAME_TOTAL * float(totals.abs().max())
    total = float(totals.mean()) if totals.numel() else math.nan
    return WeightError(
        router=path,
        tokens=truth.shape[0],
        error=_largest(seen - truth),
        floor=max((_largest(_gather(variant, real) - truth) for variant in noisy), default=0.0),
        total=total if normalised else None,
        worst_total=float(own[(own - total).abs().argmax()]) if normalised else total,
        largest=_largest(truth),
    )


def _gather(parts: Sequence[torch.Tensor], real: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part[kept].double() for part, kept in zip(parts, real, strict=True)])


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
