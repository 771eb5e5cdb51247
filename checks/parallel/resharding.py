"""One tensor as it was saved at one parallel layout against itself as it was loaded at another, element by element.

What each side recorded of a tensor is values at flat positions of the whole: all of them, or the sample. Both sides
drew the sample from the name and the whole's size, so that their positions are the same whatever the division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from plumbline_capture.sketch import sample_positions

from checks.parallel.tensors import JoinedTensor, Part, Where, inside

SAME_SUM = 1e-12
"""Relative: sketches of equal tensors are equal up to the order in which their parts are added; norms likewise."""

Key = tuple[str, str | None]


@dataclass(frozen=True)
class Reshaped:
    """What came of one tensor: `compared` of `elements` numbers, and what is wrong with it, if anything.

    `wrong`: sentence; `ranks`: those that hold the numbers that differ, of the side that divides the tensor; `zero`:
    it is zero after the load, and was not when it was saved.
    """

    kind: str
    name: str
    field: str | None
    compared: int
    elements: int
    wrong: str | None = None
    ranks: tuple[int, ...] = ()
    differing: int = 0
    zero: bool = False

    @property
    def label(self) -> str:
        return self.name if self.field is None else f"{self.field} of {self.name}"


@dataclass(frozen=True)
class _Values:
    """(m,) flat positions of the whole, ascending, and the numbers there."""

    positions: torch.Tensor
    numbers: torch.Tensor


def compare_resharded(
    saved: Mapping[Key, JoinedTensor], loaded: Mapping[Key, JoinedTensor], first: Mapping[Key, JoinedTensor]
) -> tuple[Reshaped, ...]:
    """Every tensor of either side; `first`: as the saving run held them before its first step, to tell a stale one."""
    return tuple(_compare_all(saved, loaded, first))


def _compare_all(
    saved: Mapping[Key, JoinedTensor], loaded: Mapping[Key, JoinedTensor], first: Mapping[Key, JoinedTensor]
) -> Iterator[Reshaped]:
    for key, tensor in saved.items():
        if key in loaded:
            yield _compare(tensor, loaded[key], first.get(key))
            continue
        sentence = f"{_label(tensor)} was saved and is not there after the load"
        yield Reshaped(tensor.kind, *key, 0, math.prod(tensor.global_shape), sentence)
    for key, tensor in loaded.items():
        if key not in saved:
            sentence = f"{_label(tensor)} is there after the load and was not saved"
            yield Reshaped(tensor.kind, *key, 0, math.prod(tensor.global_shape), sentence)


def _compare(saved: JoinedTensor, loaded: JoinedTensor, first: JoinedTensor | None) -> Reshaped:
    key = (saved.kind, saved.name, saved.field)
    elements = math.prod(saved.global_shape)
    dtypes = [{part.record.dtype.removeprefix("torch.") for part in side.parts} for side in (saved, loaded)]
    if saved.global_shape != loaded.global_shape:
        shapes = f"{list(loaded.global_shape)} after the load, {list(saved.global_shape)} when it was saved"
        return Reshaped(*key, 0, elements, f"{_label(saved)} has shape {shapes}")
    if dtypes[0] != dtypes[1]:
        held = [" and ".join(sorted(each)) for each in dtypes]
        return Reshaped(*key, 0, elements, f"{_label(saved)} is held in {held[1]} after the load, saved in {held[0]}")
    before = _read_whole(saved)
    if before is None:
        return Reshaped(*key, 0, elements)
    wrong: dict[int, torch.Tensor] = {}
    compared = 0
    for part in loaded.parts:
        own = _read_part(part, loaded)
        if own is None:
            continue
        ours, theirs = _meet(own, before)
        compared += ours.numel()
        away = ours != theirs
        both_nan = (ours != ours) & (theirs != theirs)
        positions = own.positions[torch.isin(own.positions, before.positions)][away & ~both_nan]
        if positions.numel():
            wrong[part.rank] = positions
    if not wrong:
        return _compare_rest(saved, loaded, compared)
    positions = torch.unique(torch.cat(list(wrong.values())))
    told = _say(saved, loaded, first, before, positions, wrong)
    ranks = tuple(wrong) if _spread(loaded) else _holders(saved, positions) if _spread(saved) else ()
    return Reshaped(*key, compared, elements, told, ranks, positions.numel(), _is_zero(loaded))


def _compare_rest(saved: JoinedTensor, loaded: JoinedTensor, compared: int) -> Reshaped:
    """The elements outside the sample, by sketch and by the norms of rows."""
    key = (saved.kind, saved.name, saved.field)
    elements = math.prod(saved.global_shape)
    ours, theirs = loaded.read("sketch"), saved.read("sketch")
    if ours is None or theirs is None or float((ours - theirs).norm()) <= SAME_SUM * float(theirs.norm()):
        return Reshaped(*key, compared, elements)
    apart = float((ours - theirs).norm() / theirs.norm().clamp(min=math.ulp(0.0)))
    where, rows = "", _odd_rows(saved, loaded)
    if rows:
        where = f", in {len(rows)} of {saved.global_shape[0]} slices along its first axis, first {rows[0]}"
    sentence = f"{_label(saved)} is {apart:.3g} of its norm off after the load, outside the sample{where}"
    held = next((_hold_rows(side, rows) for side in (loaded, saved) if _spread(side)), ())
    return Reshaped(*key, compared, elements, sentence, held)


def _say(
    saved: JoinedTensor,
    loaded: JoinedTensor,
    first: JoinedTensor | None,
    before: _Values,
    positions: torch.Tensor,
    wrong: Mapping[int, torch.Tensor],
) -> str:
    """What is wrong, as exactly as the numbers tell: where it lies, who held it, and what is there instead."""
    label = _label(saved)
    box = _box(positions, saved.global_shape)
    spans = ", ".join(f"{start}:{stop}" for start, stop in box)
    parts: list[str] = []
    if saved.sharded:
        parts.append(f"saved by {_join(_holders(saved, positions))}")
    if _spread(loaded):
        parts.append(f"loaded by {_join(tuple(wrong))}")
    who = f" ({', '.join(parts)})" if parts else ""
    where = f"in [{spans}]{who}" if spans else who.strip()
    cause = _explain(saved, loaded, first, positions)
    count = f"{positions.numel()} of {before.positions.numel()} numbers"
    return f"{label} is not what was saved: {count} differ {where}{cause}".rstrip()


def _explain(saved: JoinedTensor, loaded: JoinedTensor, first: JoinedTensor | None, positions: torch.Tensor) -> str:
    if _is_zero(loaded):
        return "; it is zero: nothing was loaded into it"
    stale = None if first is None else _read_whole(first)
    ours = _read_whole(loaded)
    if stale is not None and ours is not None:
        now, then = _at(ours, positions), _at(stale, positions)
        if now is not None and then is not None and bool((now == then).all()):
            return "; there it is as before the first step: nothing was loaded into it"
    for part, other in _exchanged(saved, loaded):
        return f"; the slice of {part.describe()} holds what {other.describe()} has saved"
    return ""


def _exchanged(saved: JoinedTensor, loaded: JoinedTensor) -> Iterator[tuple[Part, Part]]:
    """Saved parts whose place holds another part of the same shape after the load."""
    parts = [parts[0] for parts in (saved if saved.sharded else loaded).shards.values()]
    for part in parts:
        for other in parts:
            if other is not part and _sizes(part.record.where) == _sizes(other.record.where):
                here, there = _excerpt(loaded, part.record.where), _excerpt(saved, other.record.where)
                if here is not None and there is not None and _alike(here, there):
                    yield part, other


def _excerpt(tensor: JoinedTensor, where: Where) -> torch.Tensor | None:
    """The numbers in a part of the whole, or the norms of its rows where the part has whole rows; else None."""
    full = tensor.read("full")
    if full is not None:
        return full[tuple(slice(*span) for span in where)]
    rows = tensor.read("row_norms") if len(where) > 1 else None
    whole_rows = all(span == (0, size) for span, size in zip(where[1:], tensor.global_shape[1:], strict=True))
    return rows[slice(*where[0])] if rows is not None and whole_rows else None


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a.double() - b.double()).norm()) <= SAME_SUM * float(b.double().norm())


def _read_part(part: Part, tensor: JoinedTensor) -> _Values | None:
    shape, where = tensor.global_shape, part.record.where
    count = math.prod(shape)
    full = part.record.read("full")
    if full is not None:
        positions = torch.arange(count).reshape(shape)[tuple(slice(*span) for span in where)].reshape(-1)
        return _Values(positions, full.reshape(-1))
    drawn = part.record.read("sample")
    if drawn is None:
        return None
    positions = sample_positions(tensor.name, count)
    return _Values(positions[inside(positions, shape, where)], drawn)


def _read_whole(tensor: JoinedTensor) -> _Values | None:
    """The numbers that the ranks recorded together, each part by the first rank that has it."""
    values = [_read_part(parts[0], tensor) for parts in tensor.shards.values()]
    known = [each for each in values if each is not None]
    if len(known) < len(values):
        return None
    positions, numbers = torch.cat([each.positions for each in known]), torch.cat([each.numbers for each in known])
    order = positions.argsort()
    return _Values(positions[order], numbers[order])


def _meet(own: _Values, whole: _Values) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of both at the positions that both know, in the order of `own`."""
    common = torch.isin(own.positions, whole.positions)
    places = torch.searchsorted(whole.positions, own.positions[common])
    return own.numbers[common], whole.numbers[places]


def _at(values: _Values, positions: torch.Tensor) -> torch.Tensor | None:
    if not bool(torch.isin(positions, values.positions).all()):
        return None
    return values.numbers[torch.searchsorted(values.positions, positions)]


def _box(positions: torch.Tensor, shape: tuple[int, ...]) -> Where:
    """The smallest part of the whole that holds all positions."""
    spans, stride = [], math.prod(shape)
    for size in shape:
        stride //= size
        index = positions // stride % size
        spans.append((int(index.min()), int(index.max()) + 1))
    return tuple(spans)


def _holders(tensor: JoinedTensor, positions: torch.Tensor) -> tuple[int, ...]:
    """The ranks whose part has one of the positions."""
    return tuple(
        sorted(
            part.rank
            for where, parts in tensor.shards.items()
            if bool(inside(positions, tensor.global_shape, where).any())
            for part in parts
        )
    )


def _odd_rows(saved: JoinedTensor, loaded: JoinedTensor) -> list[int]:
    ours, theirs = loaded.read("row_norms"), saved.read("row_norms")
    if ours is None or theirs is None:
        return []
    found: list[int] = ((ours - theirs).abs() > SAME_SUM * theirs).nonzero().flatten().tolist()
    return found


def _hold_rows(tensor: JoinedTensor, rows: Iterable[int]) -> tuple[int, ...]:
    held = [range(*where[0]) for where in tensor.shards]
    found = {
        part.rank
        for span, parts in zip(held, tensor.shards.values(), strict=True)
        for part in parts
        if any(row in span for row in rows)
    }
    return tuple(sorted(found))


def _is_zero(tensor: JoinedTensor) -> bool:
    return all(part.record.norm == 0.0 and not part.record.nonfinite for part in tensor.parts)


def _sizes(where: Where) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in where)


def _spread(tensor: JoinedTensor) -> bool:
    return len(tensor.parts) > 1


def _label(tensor: JoinedTensor) -> str:
    return tensor.name if tensor.field is None else f"{tensor.field} of {tensor.name}"


def _join(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} " + " and ".join(str(rank) for rank in ranks)
