"""Label smoothing that nobody asked for: (1 − ε) · −log p(target) + ε · the mean of −log p over the vocabulary.

arXiv:1512.00567, section 7. A loss function that is seen says its ε. One that is not leaves the scalars that were
back-propagated: ε is what brings all of them nearest to the objective, and it explains them only if it does for each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from checks.captures.capture import Capture
from checks.diagnosis.signatures import Signature
from checks.references.batch import MicroBatch
from checks.verdict import Pattern

FEWEST = 2
"""Scalars: one alone is explained by some ε whatever is wrong."""


def read_smoothing(
    capture: Capture, batches: Mapping[int, Sequence[MicroBatch]], *, allowed: float
) -> Signature | None:
    """Name the ε by which labels are smoothed, None where that does not explain the scalars.

    allowed: the relative error that a scalar may have.
    """
    stated = {
        call.label_smoothing
        for step in capture.steps
        for micro in capture.micro_batches(step)
        for call in micro.cross_entropy
        if call.label_smoothing > 0.0
    }
    if stated:
        return _sign(max(stated))
    found = fit_smoothing(
        [parts for step, micros in batches.items() for parts in _sums(capture, step, micros)], allowed
    )
    return None if found is None else _sign(found)


def fit_smoothing(parts: Sequence[tuple[float, float, float]], allowed: float) -> float | None:
    """ε of triples (scalar, Σ −log p of the targets, Σ of the means), each over the step's count of tokens.

    None where an ε between 0 and 1 leaves a scalar more than `allowed` of itself off.

    >>> fit_smoothing([(1.9, 2.0, 1.0), (4.9, 5.0, 4.0)], 1e-6)
    0.1
    """
    if len(parts) < FEWEST:
        return None
    weight = math.fsum((mean - loss) ** 2 for _, loss, mean in parts)
    if weight == 0.0:
        return None
    epsilon = math.fsum((scalar - loss) * (mean - loss) for scalar, loss, mean in parts) / weight
    explained = all(
        abs(scalar - ((1.0 - epsilon) * loss + epsilon * mean)) <= allowed * abs(scalar) for scalar, loss, mean in parts
    )
    return round(epsilon, 6) if explained and 0.0 < epsilon < 1.0 else None


def _sums(capture: Capture, step: int, micros: Sequence[MicroBatch]) -> list[tuple[float, float, float]]:
    total = sum(int(micro.counted.sum()) for micro in micros)
    found = []
    for micro, record in zip(micros, capture.micro_batches(step), strict=True):
        if micro.mean_losses_seen is None or micro.token_losses_seen is None or record.backward is None or not total:
            continue
        loss = float(micro.token_losses_seen[micro.counted].sum()) / total
        mean = float(micro.mean_losses_seen[micro.counted].sum()) / total
        found.append((record.backward, loss, mean))
    return found


def _sign(epsilon: float) -> Signature:
    return Signature(
        f"every token's loss agrees, but labels are smoothed by {epsilon:.4g}, which nobody asked for: the scalar that "
        f"is back-propagated is {1.0 - epsilon:.4g}× their mean and {epsilon:.4g}× the mean over the vocabulary",
        Pattern.OBJECTIVE_SCALE,
        "label smoothing",
    )
