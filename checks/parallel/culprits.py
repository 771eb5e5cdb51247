"""From a step that is not that of one process to the rank, and its part of a tensor, that is wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.captures.capture import TensorRecord
from checks.parallel.comparison import Gradients
from checks.parallel.contributions import measure_contributions, measure_objectives
from checks.parallel.parts import part_error, same
from checks.parallel.runs import Runs
from checks.parallel.tensors import JoinedTensor, Part
from checks.tolerance import TensorJudgement
from checks.verdict import Measurement

AS_FAR = 0.5
"""Ranks are named whose error is at least half of the largest: what is right on the others is right within noise."""

COUNTED_AS_ONE = 0.02
"""A factor this near 1 is not named: a median over a rank's tokens carries the noise of single rows in bf16."""

LISTED = 3


@dataclass(frozen=True)
class Culprit:
    """What is wrong, and on which ranks; all of them where all are wrong alike."""

    sentence: str
    ranks: tuple[int, ...]
    where: str


def find_culprit(
    runs: Runs,
    gradients: Gradients,
    start: Sequence[tuple[JoinedTensor, tuple[Part, ...]]],
    measurements: Sequence[Measurement],
) -> Culprit:
    """The first of: another start, a gradient that one run lacks, rows without a gradient, ranks whose own parts are
    off, gradients that were not reduced, ranks that count too much or too little, all or some gradients off by one
    factor, a forward that differs, a norm.
    """
    return (
        _find_start(start)
        or _find_lost(gradients)
        or _find_dead_rows(runs)
        or _find_parts(runs, gradients)
        or _find_unreduced(runs)
        or _find_factors(runs)
        or _find_scale(runs, gradients)
        or _find_scaled_part(runs, gradients)
        or _find_forward(runs, measurements)
        or _find_rest(runs, gradients, measurements)
    )


def _find_start(start: Sequence[tuple[JoinedTensor, tuple[Part, ...]]]) -> Culprit | None:
    if not start:
        return None
    tensor, parts = start[0]
    more = f", and {len(start) - 1} more parameters differ" if len(start) > 1 else ""
    where = _list_parts(parts)
    sentence = f"{tensor.name} is not that of the run of one process before the step, on {where}{more}"
    return Culprit(sentence, _ranks(parts), f"{where}: {tensor.name}")


def _find_lost(gradients: Gradients) -> Culprit | None:
    if not gradients.only_in_one:
        return None
    name = gradients.only_in_one[0]
    return Culprit(f"{name} has a gradient in one of the two runs only", (), name)


def _find_dead_rows(runs: Runs) -> Culprit | None:
    """Rows of a shard, an expert or an output feature, whose gradient is zero on its rank and not in one process."""
    theirs = runs.single.tensors("gradient")
    for key, tensor in runs.divided.tensors("gradient").items():
        if key not in theirs or not tensor.sharded:
            continue
        whole = theirs[key].read("row_norms")
        for part in tensor.parts:
            mine = part.record.read("row_norms")
            if mine is None or whole is None or part.partial or not _holds_rows(part.record):
                continue
            first, stop = part.record.where[0]
            dead = ((mine == 0.0) & (whole[first:stop] > 0.0)).nonzero().flatten() + first
            if dead.numel():
                listed = ", ".join(str(int(row)) for row in dead[:4])
                sentence = (
                    f"rank {part.rank} has no gradient for {dead.numel()} of the rows {first}:{stop} of {tensor.name} "
                    f"that it holds ({listed}), which one process has: its part of the result is lost"
                )
                return Culprit(sentence, (part.rank,), f"{part.describe()}: {tensor.name}")
    return None


def _find_parts(runs: Runs, gradients: Gradients) -> Culprit | None:
    """Ranks whose own parts are off while those of others are not."""
    ours, theirs = runs.divided.tensors("gradient"), runs.single.tensors("gradient")
    squares = dict.fromkeys(runs.divided.ranks, 0.0)
    failing = [each.name for each in _list_failing(gradients)]
    worst: dict[int, tuple[float, Part, str]] = {}
    for name in failing:
        whole = theirs[name, None].parts[0].record
        for part in ours[name, None].parts:
            error = part_error(part, whole)
            if part.partial or math.isnan(error):
                continue
            error = min(error, 1.0)  # one tensor whose reference is near zero must not outweigh all others
            squares[part.rank] += error**2
            if error > worst.get(part.rank, (-1.0,))[0]:
                worst[part.rank] = (error, part, name)
    largest = max(squares.values(), default=0.0)
    wrong = tuple(rank for rank, square in squares.items() if square > AS_FAR**2 * largest)
    if not failing or largest == 0.0 or len(wrong) == len(squares):
        return None
    error, part, name = worst[wrong[0]]
    sentence = (
        f"the gradients that {_name(wrong)} holds are not those of one process, those of the other ranks are: "
        f"{len(failing)} parameters, by {error:.2g} in {name}"
    )
    return Culprit(sentence, wrong, f"{part.describe()}: {name}")


def _find_unreduced(runs: Runs) -> Culprit | None:
    for (name, _), tensor in runs.divided.tensors("gradient").items():
        for parts in tensor.shards.values():
            odd = [part for part in parts[1:] if _differ(part.record, parts[0].record)]
            if odd and not parts[0].partial:
                ranks = _ranks(parts)
                sentence = (
                    f"the gradient of {name} is not the same on {_name(ranks)}, and on none of them that of one "
                    "process: it was not reduced over the ranks"
                )
                return Culprit(sentence, ranks, f"gradient reduction: {name}")
    return None


def _differ(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether two records hold other numbers, by what both of them hold."""
    kinds = one.representations.keys() & other.representations.keys()
    return any(not same(one.read(kind), other.read(kind)) for kind in kinds)


def _find_factors(runs: Runs) -> Culprit | None:
    """Ranks whose rows count another number of times than those of the other ranks."""
    for factors, how, where in (
        (measure_objectives(runs), "its loss is {:.3g} of what its share of the global batch gives", "loss"),
        (measure_contributions(runs), "its rows count {:.3g} times in the reduced gradient", "gradient reduction"),
    ):
        if len(factors) < 2 or max(factors.values()) - min(factors.values()) <= COUNTED_AS_ONE:
            continue
        off = [rank for rank, factor in factors.items() if abs(factor - 1.0) > COUNTED_AS_ONE]
        said = "; ".join(f"rank {rank}: {how.format(factors[rank])}" for rank in off)
        return Culprit(f"ranks do not count alike: {said}", tuple(off), f"{where} of {_name(off)}")
    return None


def _find_scale(runs: Runs, gradients: Gradients) -> Culprit | None:
    """Every gradient off by one factor: a reduction that adds where it should average, or does so twice."""
    factor = gradients.scale.scale
    if gradients.scale.holds or not all(_is_scaled(each, factor) for each in gradients.judgements):
        return None
    n = len(runs.divided.ranks)
    said = {n: "they are added up and not averaged", 1.0 / n: "they are averaged twice"}
    why = f": {known} over the {n} ranks" if (known := _name_factor(factor, said)) else ", on every rank alike"
    return Culprit(f"all gradients are {factor:.4g} times those of one process{why}", (), "gradient reduction")


def _find_scaled_part(runs: Runs, gradients: Gradients) -> Culprit | None:
    """Some gradients off by one factor and all others right: what ranks share of a module is reduced as if it were
    whole on each, or the other way round.
    """
    failing = _list_failing(gradients)
    if not failing:
        return None
    factor = statistics.median(each.difference.scale for each in failing)
    if math.isnan(factor) or abs(factor - 1.0) <= COUNTED_AS_ONE:
        return None
    if not all(_is_scaled(each, factor) for each in failing):
        return None
    n = len(runs.divided.ranks)
    said = {n: "is added up where it is to be averaged", 1.0 / n: "is averaged where it is to be added up"}
    names = [each.name for each in failing]
    be, them = ("is", "it") if len(names) == 1 else ("are", "them")
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    why = f"; what the {n} ranks have of {them} {known}" if (known := _name_factor(factor, said)) else ""
    sentence = (
        f"{len(names)} of {len(gradients.judgements)} gradients {be} {factor:.4g} times those of one process on every "
        f"rank alike, and the others are right: {', '.join(names[:LISTED])}{more}{why}"
    )
    return Culprit(sentence, (), f"gradient reduction: {names[0]}")


def _list_failing(gradients: Gradients) -> list[TensorJudgement]:
    return [each for each in gradients.judgements if not each.holds]


def _is_scaled(each: TensorJudgement, factor: float) -> bool:
    """Whether a gradient is that of one process times a factor, within its noise or what is counted as one."""
    size = abs(factor) * math.sqrt(each.difference.square)
    return each.difference.residual(factor) <= max(each.threshold, COUNTED_AS_ONE * size)


def _name_factor(factor: float, known: Mapping[float, str]) -> str:
    return next((said for each, said in known.items() if abs(factor / each - 1.0) < COUNTED_AS_ONE), "")


def _find_forward(runs: Runs, measurements: Sequence[Measurement]) -> Culprit | None:
    wrong = tuple(
        rank
        for rank in runs.divided.ranks
        if any(each.name == f"token losses of rank {rank}" and not each.holds for each in measurements)
    )
    if not wrong:
        return None
    worst = max(each.value for each in measurements if each.name.startswith("token losses"))
    alike = "all ranks" if len(wrong) == len(runs.divided.ranks) else _name(wrong)
    sentence = f"token losses on {alike} are not those of one process, by up to {worst:.3g} nats: the forward differs"
    return Culprit(sentence, wrong, f"forward on {alike}")


def _find_rest(runs: Runs, gradients: Gradients, measurements: Sequence[Measurement]) -> Culprit:
    norms = [each for each in measurements if each.name.startswith("gradient norm on rank") and not each.holds]
    failing = _list_failing(gradients)
    if norms and not failing:
        wrong = tuple(int(each.name.rsplit(" ", 1)[1]) for each in norms)
        sentence = (
            f"the gradients are those of one process and the norm that {_name(wrong)} clips by is not, by "
            f"{norms[0].value:.2g}: parts are counted twice or not at all"
        )
        return Culprit(sentence, wrong, "gradient norm")
    names = [each.name for each in sorted(failing, key=lambda each: -each.ratio)]
    first = names[0] if names else "gradients"
    sentence = f"{len(names)} gradients are not those of one process on any rank, most of all that of {first}"
    return Culprit(sentence, (), first)


def _holds_rows(record: TensorRecord) -> bool:
    return all(span == (0, size) for span, size in zip(record.where[1:], record.global_shape[1:], strict=True))


def _list_parts(parts: Sequence[Part]) -> str:
    return "; ".join(part.describe() for part in parts)


def _ranks(parts: Sequence[Part]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(part.rank for part in parts))


def _name(ranks: Sequence[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)
