"""One rank's part of a tensor against the same part of the whole that one process holds."""

from __future__ import annotations

import math

import torch
from plumbline_capture.sketch import sample_positions

from checks.captures.capture import TensorRecord
from checks.parallel.tensors import Part, inside


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors hold the same numbers, a NaN like a NaN; what was not recorded equals nothing."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def part_error(part: Part, whole: TensorRecord) -> float:
    """‖part − its slice of the whole‖ / ‖slice‖, by all elements where both were recorded whole, else by the samples
    that lie in the part. NaN where the part holds no sample.
    """
    full, reference = part.record.read("full"), whole.read("full")
    if full is not None and reference is not None:
        return relative(full, reference[tuple(slice(*span) for span in part.record.where)])
    mine, theirs = part.record.read("sample"), whole.read("sample")
    if mine is None or theirs is None or not mine.numel():
        return math.nan
    positions = sample_positions(whole.name, math.prod(whole.global_shape))
    return relative(mine, theirs[inside(positions, whole.global_shape, part.record.where)])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖ in float64; infinite where b is zero and a is not."""
    error, norm = float((a.double() - b.double()).norm()), float(b.double().norm())
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm
