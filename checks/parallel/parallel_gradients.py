"""A step divided over n ranks is the step of one process: start, losses, gradients and their norm.

Reference: an identity: a run of the framework as one process on the rows of all ranks, each of their micro-batches one
of its own. Shards are put together and partial sums added up; sketches are linear, so that those of shards add up. The
noise floor is that of the reference step where there is one, else the round-off of the run's precision. What is wrong
is traced to its rank: by the part of the tensor that is off, by the loss of its own rows, or by how much the rows of
tokens that only it trains on count in the embedding's gradient.
Catches: gradients that are summed or averaged twice (`automodel-seqcls-dp-overscale`,
`automodel-ep-tp-expert-grad-overcount`), a mean of each rank's own (`hf-tokens-not-averaged-across-devices`,
`titan-per-rank-token-mean`), rows that are left out, shards of another rank's slice
(`automodel-transposed-shard-placement`), partial results that are not reduced (`mcore-reduce-noncontiguous`,
`titan-moe-tp-without-ep-gradient`) or added once a rank, gradient norms of one rank
(`mcore-grad-norm-undercount-ep-tp`, `ds-fp16-grad-norm-tp`).
Cannot see: what is wrong in the run of one process too; which rank is at fault where all ranks are wrong alike.
Cost: one more run of the framework, of one process, with dp_size times the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from checks.check import Check, inconclusive
from checks.errors import CaptureError
from checks.material import Material
from checks.parallel.comparison import (
    BOTH_SIDES,
    Gradients,
    compare_gradients,
    compare_start,
    compare_tokens,
    sum_epsilon,
)
from checks.parallel.contributions import measure_contributions, measure_objectives
from checks.parallel.culprits import Culprit, find_culprit
from checks.parallel.runs import Runs, find_steps, join_runs
from checks.parallel.scope import why_not_alone
from checks.parallel.tensors import NotJoined
from checks.references.reference import Reference
from checks.roles import Role
from checks.tolerance import EPSILON, MULTIPLES, limits_by_kind
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "parallel.gradients"


def judge(material: Material) -> Verdict:
    try:
        step = find_steps(material)[0]
        runs = join_runs(material, step)
        if not runs.same_rows:
            sentence = "the two runs trained on different rows, so that the identity says nothing; see parallel.data"
            return inconclusive(NAME, sentence)
        return _compare(material, runs)
    except (NotJoined, CaptureError) as error:
        return inconclusive(NAME, str(error).rstrip("."))


def _compare(material: Material, runs: Runs) -> Verdict:
    spec = material.spec
    epsilon, multiple = EPSILON[spec.precision], MULTIPLES[spec.precision]
    reference = material.references.get(runs.divided.step)
    if reference is None:
        epsilon = sum_epsilon(runs, epsilon)
    gradients = compare_gradients(runs, reference, epsilon=epsilon, multiple=multiple)
    if not gradients.judgements:
        return inconclusive(NAME, "the two runs have no gradient in common")
    start, tokens = compare_start(runs), compare_tokens(runs)
    floor = _token_floor(runs, reference, epsilon)
    measurements = (
        Measurement("parameters that differ at the start", float(len(start)), 0.0, not start, limit=1.0, unit="count"),
        *_measure_tokens(tokens, floor, multiple),
        _measure_scale(gradients),
        *_measure_gradients(gradients),
        *_compare_norms(runs, gradients),
    )
    limits = limits_by_kind(gradients.judgements, gradients.scale)
    holds = all(each.holds for each in measurements) and not gradients.only_in_one
    culprit = None if holds else find_culprit(runs, gradients, start, measurements)
    evidence = _collect_evidence(runs, gradients, tokens, culprit)
    if culprit is None:
        worst = max((j.difference.relative for j in gradients.judgements if j.difference.norm), default=0.0)
        noise = "the reference step's noise" if reference is not None else "the round-off of its precision"
        sentence = (
            f"{len(runs.divided.ranks)} ranks take the step of one process: {len(gradients.judgements)} gradients "
            f"within {worst:.2g}, judged by {noise}; start, token losses and norm agree too"
        )
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    return Verdict(
        NAME,
        Status.FAIL,
        culprit.sentence,
        measurements,
        limits,
        pattern=Pattern.PARALLELISM,
        first_wrong=culprit.where,
        evidence=evidence,
    )


def _token_floor(runs: Runs, reference: Reference | None, epsilon: float) -> float:
    if reference is not None:
        return reference.token_floor
    losses = [batch.token_losses for batch in runs.single.batches if batch.token_losses is not None]
    return epsilon * max((float(each.abs().max()) for each in losses), default=1.0)


def _measure_tokens(tokens: Mapping[int, float] | None, floor: float, multiple: float) -> list[Measurement]:
    if tokens is None:
        return []
    allowed = BOTH_SIDES * multiple * floor
    return [
        Measurement(
            f"token losses of rank {rank}", error, allowed, error <= allowed, floor, allowed + floor, unit="nats"
        )
        for rank, error in tokens.items()
    ]


def _measure_scale(gradients: Gradients) -> Measurement:
    scale = gradients.scale
    error = abs(scale.scale - 1.0)
    return Measurement("pooled scale", error, scale.threshold, scale.holds, scale.floor, scale.limit)


def _measure_gradients(gradients: Gradients) -> list[Measurement]:
    found = []
    for each in gradients.judgements:
        norm = each.difference.norm or 1.0
        error, allowed, floor = each.difference.error / norm, each.threshold / norm, each.floor.total / norm
        found.append(Measurement(each.name, error, allowed, each.holds, floor, each.limit))
    return found


def _compare_norms(runs: Runs, gradients: Gradients) -> list[Measurement]:
    """Each rank's own norm at its last clip against that of one process; by the triangle inequality it may be off by
    what the gradients may be.
    """
    ours = {rank: runs.divided.capture.step(runs.divided.step, rank=rank).clips for rank in runs.divided.ranks}
    theirs = runs.single.capture.step(runs.single.step).clips
    if not theirs or not all(ours.values()):
        return []
    norm = theirs[-1].total_norm
    errors = {rank: abs(clips[-1].total_norm - norm) / (norm or 1.0) for rank, clips in ours.items()}
    allowed = math.sqrt(math.fsum(j.threshold**2 for j in gradients.judgements)) / norm if norm else 0.0
    return [
        Measurement(f"gradient norm on rank {rank}", error, allowed, error <= allowed, limit=allowed)
        for rank, error in errors.items()
        if not math.isnan(error)
    ]


def _collect_evidence(
    runs: Runs, gradients: Gradients, tokens: Mapping[int, float] | None, culprit: Culprit | None
) -> dict[str, object]:
    return {
        "ranks": [] if culprit is None else list(culprit.ranks),
        "scale": gradients.scale.scale,
        "only_in_one": list(gradients.only_in_one),
        "token_losses": {str(rank): error for rank, error in (tokens or {}).items()},
        "contributions": {str(rank): factor for rank, factor in measure_contributions(runs).items()},
        "objectives": {str(rank): factor for rank, factor in measure_objectives(runs).items()},
        "losses": {str(rank): list(losses) for rank, losses in runs.divided.losses.items()},
        "sharded": sorted(name for (name, _), each in runs.divided.tensors("gradient").items() if each.sharded),
    }


CHECK = Check(
    NAME,
    "a step divided over n ranks is the step of one process",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.SINGLE),
    reference=True,
    applies=why_not_alone,
)
