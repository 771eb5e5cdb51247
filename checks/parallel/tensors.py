"""One tensor as all ranks hold it: shards are put together, partial sums added up, replicas counted once.

Sketches are linear in the flat index of the whole tensor (docs/capture-format.md), so that those of shards add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from plumbline_capture.sketch import sample_positions

from checks.captures.capture import TensorRecord

Where = tuple[tuple[int, int], ...]
"""[start, stop) in each dimension of the whole"""


class NotJoined(ValueError):
    """The ranks' records are not one step of one run; `str()` says which rank, and why. The verdict is inconclusive."""


@dataclass(frozen=True)
class Part:
    """What one rank recorded of a tensor."""

    rank: int
    record: TensorRecord

    @property
    def partial(self) -> bool:
        return "partial" in self.record.placement.values()

    def describe(self) -> str:
        """The rank, and which part of the tensor it holds, for a person."""
        spans = ", ".join(f"{start}:{stop}" for start, stop in self.record.where)
        whole = all(span == (0, size) for span, size in zip(self.record.where, self.record.global_shape, strict=True))
        return f"rank {self.rank}" if whole else f"rank {self.rank}, [{spans}]"


@dataclass(frozen=True)
class JoinedTensor:
    """`shards`: part of the whole → what each rank that has it recorded, by rank; together they tile the whole."""

    name: str
    kind: str
    field: str | None
    global_shape: tuple[int, ...]
    shards: Mapping[Where, tuple[Part, ...]]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for parts in self.shards.values() for part in parts)

    @property
    def sharded(self) -> bool:
        return len(self.shards) > 1

    @property
    def norm(self) -> float:
        """Of the whole; NaN where partial sums leave it open and only sketches were recorded."""
        if any(parts[0].partial for parts in self.shards.values()):
            full = self.read("full")
            return math.nan if full is None else float(full.double().norm())
        return math.sqrt(math.fsum(parts[0].record.norm ** 2 for parts in self.shards.values() if _count(parts)))

    def read(self, representation: str) -> torch.Tensor | None:
        """`full` in the recorded dtype (partial sums in float64), `sketch`, `sample` or `row_norms`; None where a rank
        lacks it.

        Row norms of partial sums are not those of the sum: None.
        """
        found = {where: _add_up(parts, representation) for where, parts in self.shards.items()}
        known = {where: value for where, value in found.items() if value is not None}
        if len(known) < len(found):
            return None
        if representation == "sketch":
            return torch.stack(list(known.values())).sum(0)
        if representation == "row_norms":
            squares = torch.zeros(self.global_shape[0], dtype=torch.float64)
            for where, value in known.items():
                squares[slice(*where[0])] += value.double().square()
            return squares.sqrt()
        dtype = next(iter(known.values())).dtype
        if representation == "sample":
            positions = sample_positions(self.name, math.prod(self.global_shape))
            drawn = torch.empty(positions.numel(), dtype=dtype)
            for where, value in known.items():
                drawn[inside(positions, self.global_shape, where)] = value
            return drawn
        whole = torch.empty(self.global_shape, dtype=dtype)
        for where, value in known.items():
            whole[tuple(slice(*span) for span in where)] = value
        return whole


def join_tensor(parts: Sequence[Part], *, ranks: Sequence[int]) -> JoinedTensor:
    """Put the parts of one tensor together; `ranks` are all that recorded the step.

    Raises:
        NotJoined: shapes differ, parts overlap, or they do not cover the whole.
    """
    first = parts[0]
    label = describe(first.record)
    for part in parts[1:]:
        if part.record.global_shape != first.record.global_shape:
            theirs, ours = list(part.record.global_shape), list(first.record.global_shape)
            raise NotJoined(f"{label} has shape {theirs} on rank {part.rank} and {ours} on rank {first.rank}")
    shards: dict[Where, tuple[Part, ...]] = {}
    for part in sorted(parts, key=lambda each: each.rank):
        shards[part.record.where] = (*shards.get(part.record.where, ()), part)
    for one, other in combinations(shards, 2):
        if all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True)):
            found = f"{shards[one][0].describe()} and {shards[other][0].describe()} overlap"
            raise NotJoined(f"the parts of {label} on {found}")
    covered = sum(_volume(where) for where in shards)
    if covered != math.prod(first.record.global_shape):
        silent = sorted(set(ranks) - {part.rank for part in parts})
        who = f"rank {silent[0]} recorded none of it" if silent else f"they are on {_list_ranks(parts)}"
        raise NotJoined(
            f"the parts of {label} cover {covered} of {math.prod(first.record.global_shape)} elements; {who}"
        )
    return JoinedTensor(first.record.name, first.record.kind, first.record.field, first.record.global_shape, shards)


def inside(positions: torch.Tensor, shape: tuple[int, ...], where: Where) -> torch.Tensor:
    """(m,) bool: which flat positions of a tensor of this shape lie in the part."""
    found = torch.ones_like(positions, dtype=torch.bool)
    stride = math.prod(shape)
    for size, (start, stop) in zip(shape, where, strict=True):
        stride //= size
        index = positions // stride % size
        found &= (index >= start) & (index < stop)
    return found


def describe(record: TensorRecord | JoinedTensor) -> str:
    """`gradient of model.norm.weight`, for a person."""
    kind = record.kind.replace("_", " ")
    return f"the {kind} of {record.name}" if record.field is None else f"the {kind} {record.field} of {record.name}"


def _add_up(parts: tuple[Part, ...], representation: str) -> torch.Tensor | None:
    if not parts[0].partial:
        return parts[0].record.read(representation)
    values = [part.record.read(representation) for part in parts]
    known = [value.double() for value in values if value is not None]
    if representation == "row_norms" or len(known) < len(values):
        return None
    return torch.stack(known).sum(0)


def _count(parts: tuple[Part, ...]) -> bool:
    return _volume(parts[0].record.where) > 0


def _volume(where: Where) -> int:
    return math.prod(stop - start for start, stop in where)


def _list_ranks(parts: Sequence[Part]) -> str:
    return "ranks " + ", ".join(str(part.rank) for part in parts)
