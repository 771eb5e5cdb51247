"""What the trainer held after which of its steps, parameter by parameter, and what a cast makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from plumbline_capture.sketch import row_norms, sample_positions, sketch

from checks.captures.capture import Capture, TensorRecord

SAME_SUM = 1e-12
"""Relative: sums of the same numbers, added in another order."""

SKETCH_SPREAD = 1.5
"""A sketch's length estimates a difference's within 1.1 % (docs/capture-format.md); half as much again is no chance."""


@dataclass(frozen=True)
class TrainerStates:
    """`records`: steps done → parameter → what was recorded of it then; those that do not train are in each."""

    records: Mapping[int, Mapping[str, TensorRecord]]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(self.records))

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: record.global_shape for name, record in self.records[self.steps[-1]].items()}


def read_states(capture: Capture) -> TrainerStates:
    """The weights before and after each recorded step of one process."""
    records: dict[int, dict[str, TensorRecord]] = {}
    for step in capture.steps:
        before = dict(capture.tensors(step, "parameter_before"))
        records[step - 1] = {**before, **records.get(step - 1, {})}
        records[step] = {**before, **capture.tensors(step, "parameter_after")}
    return TrainerStates(records)


def is_cast(tensor: torch.Tensor, record: TensorRecord) -> bool:
    """Whether a tensor is what was recorded, cast to the tensor's dtype: bitwise wherever numbers were recorded, and by
    norms of rows and the sketch elsewhere.
    """
    values = known_values(record)
    if values is None or tuple(tensor.shape) != record.global_shape:
        return False
    positions, numbers = values
    mine = tensor.reshape(-1) if positions is None else tensor.reshape(-1)[positions]
    if not bool((mine == numbers.to(tensor.dtype)).all()):
        return False
    return positions is None or _sums_agree(tensor, record)


def known_values(record: TensorRecord) -> tuple[torch.Tensor | None, torch.Tensor] | None:
    """Flat positions, None for all, and the numbers that were recorded there."""
    full = record.read("full")
    if full is not None:
        return None, full.reshape(-1)
    drawn = record.read("sample")
    if drawn is None:
        return None
    return sample_positions(record.name, math.prod(record.global_shape)), drawn


def distance(tensor: torch.Tensor, record: TensorRecord) -> tuple[float, int, int]:
    """‖tensor − cast‖ / ‖cast‖ over the recorded numbers, how many of them differ, and how many there are."""
    values = known_values(record)
    if values is None:
        return math.nan, 0, 0
    positions, numbers = values
    mine = (tensor.reshape(-1) if positions is None else tensor.reshape(-1)[positions]).double()
    theirs = numbers.to(tensor.dtype).double()
    norm = float(theirs.norm())
    error = float((mine - theirs).norm())
    relative = error / norm if norm > 0.0 else (0.0 if error == 0.0 else math.inf)
    return relative, int((mine != theirs).sum()), theirs.numel()


def round_off(stored: str, tensor: torch.Tensor) -> float:
    """The largest relative error of the cast; 0 where it keeps every number."""
    source = getattr(torch, stored.removeprefix("torch."))
    finer = torch.finfo(tensor.dtype).eps >= torch.finfo(source).eps if tensor.is_floating_point() else False
    return torch.finfo(tensor.dtype).eps / 2.0 if finer and tensor.dtype != source else 0.0


def tell_apart(records: Sequence[TensorRecord], dtype: torch.dtype) -> bool:
    """Whether two states of a parameter differ anywhere after the cast, as far as their numbers were recorded."""
    values = [known_values(record) for record in records]
    known = [each[1].to(dtype) for each in values if each is not None]
    return len(known) == 2 and known[0].shape == known[1].shape and not bool((known[0] == known[1]).all())


def _sums_agree(tensor: torch.Tensor, record: TensorRecord) -> bool:
    allowed = round_off(record.dtype, tensor)
    rows = record.read("row_norms")
    if rows is not None and bool(((row_norms(tensor) - rows).abs() > (allowed + SAME_SUM) * rows).any()):
        return False
    whole = record.read("sketch")
    if whole is None:
        return True
    apart = float((sketch(tensor, record.name) - whole).norm())
    return apart <= (SKETCH_SPREAD * allowed + SAME_SUM) * record.norm
