"""One parameter of a dump against what the trainer held after each of its recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from checks.transfer.dump import Dump
from checks.transfer.merging import is_merged
from checks.transfer.names import Matching
from checks.transfer.states import TrainerStates, distance, is_cast

UNQUANTISED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Compared:
    """One parameter: the steps after which the trainer held what the engine holds, and how far it is from the asked.

    `merged`: it was held against the base with its adapters merged; `base_alone`: it is the base without them.
    """

    name: str
    source: str
    dtype: str
    steps: tuple[int, ...]
    relative: float
    differing: int
    compared: int
    problem: str | None = None
    quantised: bool = False
    merged: bool = False
    base_alone: bool = False


def walk_copies(matching: Matching) -> list[tuple[str, int]]:
    """Each tied head beside its embedding: the embedding's name, and the place among its copies."""
    return [(name, place) for name, copies in matching.copies.items() for place in range(len(copies))]


def compare_parameter(
    dump: Dump, matching: Matching, name: str, states: TrainerStates, step: int, *, scale: float | None
) -> Compared:
    """`step`: what the dump says of itself; `scale`: alpha / r where the base is held with its adapters merged."""
    target = matching.targets[name]
    source = matching.source_of(target)
    tensor = matching.assemble(target, dump)
    dtype = str(tensor.dtype).removeprefix("torch.")
    record = states.records[step][name]
    problem = None
    if tensor.dtype not in UNQUANTISED:
        problem = f"{source} is held in {dtype}, a quantised form"
    elif tuple(tensor.shape) != record.global_shape:
        problem = f"{source} has shape {list(tensor.shape)}, {list(record.global_shape)} in the trainer"
    if problem is not None:
        return Compared(name, source, dtype, (), 0.0, 0, 0, problem, quantised=tensor.dtype not in UNQUANTISED)
    relative, differing, count = distance(tensor, record)
    alone = False
    if scale is None:
        steps = tuple(each for each in states.steps if is_cast(tensor, states.records[each][name]))
    else:
        held = {each: is_merged(tensor, name, states.records[each], scale=scale) for each in states.steps}
        if held[step] is None:
            return Compared(name, source, dtype, (), 0.0, 0, 0, f"the adapters of {name} were not recorded in full")
        steps = tuple(each for each, holds in held.items() if holds)
        alone = step not in steps and is_cast(tensor, record)
    return Compared(name, source, dtype, steps, relative, differing, count, merged=scale is not None, base_alone=alone)


def compare_copy(dump: Dump, matching: Matching, name: str, place: int, compared: Sequence[Compared]) -> Compared:
    """A tied head that the dump holds beside the embedding: the same numbers."""
    copy = matching.copies[name][place]
    mine, theirs = matching.assemble(copy, dump), matching.assemble(matching.targets[name], dump)
    same = mine.shape == theirs.shape and mine.dtype == theirs.dtype and bool((mine == theirs).all())
    steps = next(each.steps for each in compared if each.name == name) if same else ()
    head = str(copy.tied_as)
    differing = 0 if same else int((mine != theirs).sum()) if mine.shape == theirs.shape else mine.numel()
    size = float(theirs.double().norm())
    apart = float((mine.double() - theirs.double()).norm()) / size if mine.shape == theirs.shape and size else 0.0
    return Compared(head, matching.source_of(copy), str(mine.dtype), steps, apart, differing, mine.numel())
