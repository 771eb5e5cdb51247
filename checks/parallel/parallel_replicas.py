"""What ranks hold in common is bitwise the same on each of them.

Reference: the other ranks: parameters before and after the step, gradients after their reduction and optimizer states
are compared in every representation that was recorded, each part with the same part on other ranks. The rank that
differs is the one outside the majority; of two, the one that is farther from the run of one process.
Catches: replicas that drift (`automodel-tp-replicas-drift`, `accelerate-fsdp-untied-after-init`), gradients that are
not reduced over every axis (`titan-router-grad-not-reduced`, `automodel-hsdp-moe-replicas-unsynced`), state of one rank
that was not loaded.
Cannot see: what is wrong on every rank alike (`parallel.gradients`); of a large tensor, a change outside its sample
that leaves the sketch as it was.
Cost: the run of one process, which `parallel.gradients` takes too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from checks.captures.capture import TensorRecord
from checks.check import Check, inconclusive, skipped
from checks.material import Material
from checks.parallel.joining import JoinedStep
from checks.parallel.parts import part_error, same
from checks.parallel.runs import find_steps, join_asked
from checks.parallel.scope import why_not_alone
from checks.parallel.tensors import JoinedTensor, NotJoined, Part, describe
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "parallel.replicas"

KINDS = ("parameter_before", "gradient", "gradient_clipped", "parameter_after", "optimizer_state")
"""in the order in which a step makes them"""

AS_FAR = 0.5
"""Of two ranks that differ, both are named where the nearer one is at least half as far from the run of one process:
its own error would be a thousandth of that."""

SHOWN = 50


@dataclass(frozen=True)
class Disagreement:
    """One part of a tensor that is not the same on all ranks that hold it; `errors`: rank → distance from one process,
    NaN where there is nothing to compare with.
    """

    step: int
    tensor: JoinedTensor
    classes: tuple[tuple[Part, ...], ...]
    errors: dict[int, float]

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that differ: those outside the one largest class, else those far from the run of one process."""
        sizes = sorted((len(each) for each in self.classes), reverse=True)
        if sizes[0] > sizes[1]:
            largest = max(self.classes, key=len)
            return tuple(part.rank for each in self.classes if each is not largest for part in each)
        known = {rank: error for rank, error in self.errors.items() if not math.isnan(error)}
        worst = max(known.values(), default=math.nan)
        far = tuple(rank for rank, error in known.items() if error >= AS_FAR * worst)
        return far or tuple(self.errors)


def judge(material: Material) -> Verdict:
    try:
        steps = {step: join_asked(material, step) for step in find_steps(material)}
        found, compared = [], 0
        for step in steps.values():
            for tensor in _walk(step):
                for parts in tensor.shards.values():
                    if len(parts) > 1 and not parts[0].partial:
                        compared += 1
                        classes = _sort(parts)
                        if len(classes) > 1:
                            found.append(Disagreement(step.step, tensor, classes, _measure(material, step, parts)))
    except NotJoined as error:
        return inconclusive(NAME, str(error))
    return _decide(material, found, compared, steps=tuple(steps))


def _walk(step: JoinedStep) -> Iterator[JoinedTensor]:
    for kind in KINDS:
        yield from step.tensors(kind).values()


def _sort(parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], ...]:
    """The parts in classes of equal ones."""
    classes: list[list[Part]] = []
    for part in parts:
        for each in classes:
            if _equal(each[0].record, part.record):
                each.append(part)
                break
        else:
            classes.append([part])
    return tuple(tuple(each) for each in classes)


def _equal(a: TensorRecord, b: TensorRecord) -> bool:
    kinds = a.representations.keys() | b.representations.keys()
    return a.dtype == b.dtype and all(same(a.read(kind), b.read(kind)) for kind in kinds)


def _measure(material: Material, step: JoinedStep, parts: tuple[Part, ...]) -> dict[int, float]:
    single = material.capture_of(Role.SINGLE)
    record = parts[0].record
    records = () if single is None else single.all_tensors(step.step, record.kind)
    whole = next((each for each in records if (each.name, each.field) == (record.name, record.field)), None)
    if whole is None or whole.global_shape != record.global_shape:
        return {part.rank: math.nan for part in parts}
    return {part.rank: part_error(part, whole) for part in parts}


def _decide(material: Material, found: list[Disagreement], compared: int, *, steps: tuple[int, ...]) -> Verdict:
    if not compared and material.spec.pp_size == material.spec.processes:
        return skipped(
            NAME, "each stage holds its own parameters, so that there are no replicas; see parallel.gradients"
        )
    if not compared:
        return inconclusive(NAME, "no tensor is on two ranks, so that there are no replicas; see parallel.gradients")
    processes = material.spec.processes
    measurements = (Measurement("replicas that differ", float(len(found)), 0.0, not found, limit=1.0, unit="count"),)
    if not found:
        listed = " and ".join(f"step {step}" for step in steps)
        sentence = f"{compared} tensors of {listed} are bitwise the same on each of {processes} ranks that hold them"
        return Verdict(NAME, Status.PASS, sentence, measurements, evidence={"compared": compared})
    first = found[0]
    ranks = " and ".join(f"rank {rank}" for rank in first.odd)
    names = list(dict.fromkeys(each.tensor.name for each in found))
    verb = "differs" if len(first.odd) == 1 else "differ"
    sentence = (
        f"{ranks} {verb} in {describe(first.tensor)}, which all ranks should hold alike, at step {first.step}; "
        f"{len(found)} of {compared} replicas differ, in {len(names)} parameters"
    )
    return Verdict(
        NAME,
        Status.FAIL,
        sentence,
        measurements,
        pattern=Pattern.PARALLELISM,
        first_wrong=f"rank {', '.join(map(str, first.odd))}: {first.tensor.name}",
        evidence={
            "compared": compared,
            "ranks": list(first.odd),
            "differing": [_show(each) for each in found[:SHOWN]],
            "parameters": names[:SHOWN],
        },
    )


def _show(each: Disagreement) -> dict[str, object]:
    return {
        "step": each.step,
        "kind": each.tensor.kind,
        "name": each.tensor.name,
        "field": each.tensor.field,
        "ranks": list(each.odd),
        "distance_from_one_process": {
            str(rank): None if math.isnan(error) or math.isinf(error) else error for rank, error in each.errors.items()
        },
    }


def _applies(spec: RunSpec) -> str | None:
    if spec.sharding == "fsdp2":
        return "fsdp2 gives every rank a part of each parameter, so that there are no replicas; see parallel.gradients"
    return why_not_alone(spec)


CHECK = Check(
    NAME,
    "what ranks hold in common is the same on each of them",
    __doc__ or "",
    judge,
    roles=(Role.RUN, Role.SINGLE),
    applies=_applies,
)
