"""The gradient norm that a run logs, and clips by, is that of all its gradients, each counted once.

Reference: the norm of the step's captured gradients, in float64: shards put together, partial sums added up, replicas
counted once. Where the capture does not hold every gradient of the model, the norm of the float64 reference's
gradients.
Catches: parts that are left out or counted twice where ranks share a model (`mcore-grad-norm-undercount-ep-tp`,
`ds-fp16-grad-norm-tp`), a norm of one rank's rows, a norm of zero (`mcore-zero-grad-norm-precision-aware`), clipping by
another norm than the logged one.
Cannot see: gradients that are wrong themselves (`step.gradients`, `parallel.gradients`); what is done with the norm
(`step.update`).
Cost: nothing beyond the run and, over several ranks, that of one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from checks.captures.blocks import kind_of
from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.errors import CaptureError
from checks.material import Material
from checks.parallel.runs import find_steps, join_asked
from checks.parallel.tensors import JoinedTensor, NotJoined
from checks.references.reference import Reference
from checks.tolerance import MULTIPLES
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.grad_norm"

ROUND_OFF = {"torch.float64": 2.0**-53, "torch.float32": 2.0**-24, "torch.bfloat16": 2.0**-9, "torch.float16": 2.0**-11}

EXPLAINED = 1e-3
"""Of the missing square: a part of the gradients whose square is so near to it is named."""


LOGGED = "logged norm"


@dataclass(frozen=True)
class Norm:
    """A norm that a run gives: in its log, or to its clipping."""

    name: str
    value: float


@dataclass(frozen=True)
class Due:
    """The norm that it should be, and its relative noise."""

    norm: float
    source: str
    multiple: float
    floor: float

    @property
    def threshold(self) -> float:
        return self.multiple * self.floor


def judge(material: Material) -> Verdict:
    try:
        steps = find_steps(material)
        verdicts = [_judge_step(material, step) for step in steps]
    except (NotJoined, CaptureError) as error:
        return inconclusive(NAME, str(error).rstrip("."))
    order = (Status.FAIL, Status.PASS, Status.INCONCLUSIVE)
    return min(verdicts, key=lambda verdict: order.index(verdict.status))


def _judge_step(material: Material, step: int) -> Verdict:
    capture = material.capture
    assert capture is not None
    given = list(_find_norms(material, capture, step))
    if not given:
        said = "the run clips by no norm that was recorded and logs none"
        return inconclusive(NAME, f"{said} of step {step}; set max_grad_norm above 0")
    tensors = list(join_asked(material, step).tensors("gradient").values())
    lost = _find_lost(capture, step, tensors)
    if lost is None:
        norm = math.hypot(*(tensor.norm for tensor in tensors))
        due = Due(norm, "the captured gradients", MULTIPLES["float32"], _measure_floor(tensors))
    elif step in material.references:
        due = _measure_reference(material.references[step], MULTIPLES[material.spec.precision])
    else:
        return inconclusive(NAME, f"{lost}, so that the norm of all is not known; record the capture again")
    if due.norm == 0.0:
        return inconclusive(NAME, f"every gradient of step {step} is zero, so that the norm tells nothing")
    return _decide(step, given, due, tensors)


def _find_norms(material: Material, capture: Capture, step: int) -> Iterator[Norm]:
    """What the log says of the step, and what each rank clipped by last."""
    logged = next((record.grad_norm for record in capture.log if record.step == step), None)
    # Of a run that broke off only the printed lines are there, with a few digits.
    if logged is not None and material.run.ending == "completed":
        yield Norm(LOGGED, logged)
    for rank in capture.ranks:
        if step in capture.records[rank]:
            clips = capture.step(step, rank=rank).clips
            if clips and clips[-1].norm_type == 2.0 and not math.isnan(clips[-1].total_norm):
                yield Norm(f"norm that rank {rank} clips by", clips[-1].total_norm)


def _find_lost(capture: Capture, step: int, tensors: Sequence[JoinedTensor]) -> str | None:
    """Why the captured gradients are not all gradients; None where they are."""
    for note in capture.missing:
        if note.step == step and note.what.startswith(("gradient", "name of")):
            return f"{note.what} was not recorded ({note.why})"
    if not tensors:
        return f"no gradient of step {step} was recorded"
    unknown = next((tensor.name for tensor in tensors if math.isnan(tensor.norm)), None)
    return None if unknown is None else f"the parts of {unknown} are to be added up and were recorded as sketches"


def _measure_floor(tensors: Sequence[JoinedTensor]) -> float:
    """Relative round-off of a norm: of each tensor's, of their squares' sum (pairwise, ε · log2 n), and of the root."""
    epsilon = max(ROUND_OFF.get(part.record.dtype, 2.0**-9) for tensor in tensors for part in tensor.parts)
    largest = max(math.prod(tensor.global_shape) for tensor in tensors)
    return epsilon * (2.0 + math.log2(max(largest, 2)))


def _measure_reference(reference: Reference, multiple: float) -> Due:
    """The norm of the reference's gradients; by the triangle inequality it may be off by what they may be."""
    norm = math.hypot(*(gradient.norm for gradient in reference.gradients.values()))
    floor = math.hypot(*(reference.floor(name).total for name in reference.gradients))
    return Due(norm, f"the {reference.source.name}'s gradients", multiple, floor / norm if norm else 0.0)


def _decide(step: int, given: Sequence[Norm], due: Due, tensors: Sequence[JoinedTensor]) -> Verdict:
    norm, source, threshold = due.norm, due.source, due.threshold
    errors = {each.name: abs(each.value - norm) / norm for each in given}
    measurements = tuple(
        Measurement(name, error, threshold, error <= threshold, due.floor, threshold + due.floor)
        for name, error in errors.items()
    )
    limits = {"gradient norm": threshold + due.floor}
    evidence = {
        "step": step,
        "norm": norm,
        "source": source,
        "given": {each.name: each.value for each in given},
        "parameters": len(tensors),
    }
    wrong = [each for each in given if not errors[each.name] <= threshold]
    if not wrong:
        worst = max(errors.values())
        sentence = f"{_list(given, step)} {_be(given)} that of {source}, {norm:.6g}, within {worst:.2g}"
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    several = len({part.rank for tensor in tensors for part in tensor.parts}) > 1
    why = _explain(wrong[0].value, norm, tensors)
    sentence = (
        f"{_list(wrong, step)} {_be(wrong)} {wrong[0].value:.6g}, and the norm of {source} is {norm:.6g}"
        f"{f': {why}' if why else ''}"
    )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        limits,
        pattern=Pattern.PARALLELISM if several else Pattern.OBJECTIVE_SCALE,
        first_wrong="gradient norm",
        evidence=evidence | {"explanation": why},
    )


def _explain(value: float, norm: float, tensors: Sequence[JoinedTensor]) -> str:
    """Which part of the gradients makes the difference, where one does; empty where none is known."""
    missing = norm**2 - value**2
    wholes = _sum_by_kind(tensors, _square_of_whole)
    beyond = _sum_by_kind(tensors, _square_beyond_first)
    again = _sum_by_kind(tensors, _square_of_replicas)
    for squares, wanted, words in (
        (beyond, missing, "the shards of {} on every rank but the first are left out"),
        (wholes, missing, "{} is left out"),
        (again, -missing, "{} is counted once for each rank that holds a copy"),
    ):
        for kinds in _choose(squares):
            total = math.fsum(squares[kind] for kind in kinds)
            if total > 0.0 and wanted > 0.0 and abs(total / wanted - 1.0) < EXPLAINED:
                return words.format(" and ".join(kinds))
    return ""


def _choose(squares: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    """One kind, two kinds, all of them."""
    known = [kind for kind, square in squares.items() if square > 0.0]
    for count in (1, 2):
        yield from combinations(known, count)
    if len(known) > 2:
        yield tuple(known)


def _sum_by_kind(tensors: Sequence[JoinedTensor], square: Callable[[JoinedTensor], float]) -> Mapping[str, float]:
    sums: dict[str, float] = {}
    for tensor in tensors:
        kind = kind_of(tensor.name)
        sums[kind] = sums.get(kind, 0.0) + square(tensor)
    return sums


def _square_of_whole(tensor: JoinedTensor) -> float:
    return tensor.norm**2


def _square_beyond_first(tensor: JoinedTensor) -> float:
    parts = [held[0] for held in tensor.shards.values()]
    return math.fsum(part.record.norm**2 for part in sorted(parts, key=lambda part: part.rank)[1:])


def _square_of_replicas(tensor: JoinedTensor) -> float:
    return math.fsum(part.record.norm**2 for held in tensor.shards.values() for part in held[1:] if not part.partial)


def _list(norms: Sequence[Norm], step: int) -> str:
    ranks = [each.name.split()[3] for each in norms if each.name != LOGGED]
    names = ["the logged norm"] if any(each.name == LOGGED for each in norms) else []
    if len(ranks) == 1:
        names.append(f"the norm that rank {ranks[0]} clips by")
    elif ranks:
        names.append(f"the norm that ranks {', '.join(ranks)} clip by")
    return f"{' and '.join(names)} at step {step}"


def _be(norms: Sequence[Norm]) -> str:
    """The log's norm is one, those of all ranks' clipping are one."""
    return "is" if len({each.name == LOGGED for each in norms}) == 1 else "are"


CHECK = Check(
    NAME,
    "the logged gradient norm is that of the step's gradients",
    __doc__ or "",
    judge,
    reference=True,
)
