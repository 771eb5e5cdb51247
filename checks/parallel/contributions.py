"""How much each data-parallel rank's rows count in a reduced gradient, read off the embedding.

A row of an untied embedding has a gradient from the positions that hold its token, and from nowhere else. The rows of
tokens that only one rank trains on are that rank's contribution alone: their norms, over those of one process, are the
factor by which the reduction took it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from checks.parallel.joining import JoinedStep
from checks.parallel.runs import Runs

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def measure_contributions(runs: Runs) -> Mapping[int, float]:
    """Data-parallel rank → the median factor of its own tokens' rows; empty where that cannot be told.

    A rank without a token of its own, a tied embedding (every row has a gradient through the head) and an embedding
    whose row norms were not recorded leave it open.
    """
    ours, theirs = runs.divided.tensors("gradient"), runs.single.tensors("gradient")
    name = next((name for name, _ in theirs if name.endswith(EMBEDDING)), None)
    if name is None or not any(other.endswith(HEAD) for other, _ in theirs) or (name, None) not in ours:
        return {}
    divided, single = ours[name, None].read("row_norms"), theirs[name, None].read("row_norms")
    if divided is None or single is None or divided.shape != single.shape:
        return {}
    tokens = _tokens_by_rank(runs.divided, rows=single.numel())
    others = {rank: sum((t for r, t in tokens.items() if r != rank), torch.zeros_like(single)) for rank in tokens}
    found = {}
    for rank, own in tokens.items():
        alone = (own > 0) & (others[rank] == 0) & (single > 0)
        if bool(alone.any()):
            found[rank] = float((divided[alone] / single[alone]).median())
    return found


def _tokens_by_rank(step: JoinedStep, *, rows: int) -> dict[int, torch.Tensor]:
    counts: dict[int, torch.Tensor] = {}
    for batch in step.batches:
        if batch.input_ids is not None:
            seen = torch.bincount(batch.input_ids.flatten(), minlength=rows)[:rows].double()
            counts[batch.rank] = counts.get(batch.rank, torch.zeros(rows, dtype=torch.float64)) + seen
    return counts


def measure_objectives(runs: Runs) -> Mapping[int, float]:
    """Data-parallel rank → its back-propagated scalars over those of one process, over all its micro-batches.

    The reduction averages over `dp_size` ranks, so that each is counted as its dp_size-th part. A framework whose
    reduction adds up has one factor on all ranks, which is no fault: only factors that differ between ranks are.
    """
    totals: dict[int, list[float]] = {}
    for ours, theirs in zip(runs.divided.batches, runs.single.batches, strict=True):
        one, other = ours.record.backward, theirs.record.backward
        if one is None or other is None:
            return {}
        total = totals.setdefault(ours.rank, [0.0, 0.0])
        total[0] += one / runs.divided.dp_size
        total[1] += other
    return {rank: one / other for rank, (one, other) in totals.items() if other}
