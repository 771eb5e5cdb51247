"""How far one tensor is from its reference: error, signed scale, direction, and the same by block.

Everything is linear algebra in float64 on either representation. With sketches S (docs/capture-format.md), ‖S_a − S_b‖
estimates ‖a − b‖ within about 1 % and ⟨S_a, S_b⟩ the inner product; block norms are exact in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from plumbline_capture.sketch import row_norms, sketch

from checks.captures.blocks import Blocks
from checks.captures.capture import TensorRecord
from checks.errors import NotRecorded


@dataclass(frozen=True)
class Difference:
    """A tensor a against its reference b.

    `error` = ‖a − b‖, `norm` = ‖b‖, `other_norm` = ‖a‖. `dot` = ⟨a, b⟩, `square` = ⟨b, b⟩ and `other_square` = ⟨a, a⟩
    come from one representation, so that their ratios are exact for a = c·b even where each is an estimate.
    `block_errors` and `block_norms`: (blocks,) float64, | ‖a_k‖ − ‖b_k‖ | and ‖b_k‖ of each block k, empty when the
    tensor is one block.
    """

    error: float
    norm: float
    other_norm: float
    dot: float
    square: float
    other_square: float
    block_errors: torch.Tensor
    block_norms: torch.Tensor

    @property
    def relative(self) -> float:
        """‖a − b‖ / ‖b‖; infinite where the reference is zero and the tensor is not."""
        if self.norm == 0.0:
            return 0.0 if self.error == 0.0 else math.inf
        return self.error / self.norm

    @property
    def scale(self) -> float:
        """The c that brings c·b nearest to a: ⟨a, b⟩ / ⟨b, b⟩. 1 where both are zero."""
        if self.square == 0.0:
            return 1.0 if self.other_square == 0.0 else math.nan
        return self.dot / self.square

    @property
    def cosine(self) -> float:
        if self.square == 0.0 or self.other_square == 0.0:
            return 1.0 if self.square == self.other_square else 0.0
        return max(-1.0, min(1.0, self.dot / math.sqrt(self.square * self.other_square)))

    def residual(self, c: float) -> float:
        """‖a − c·b‖: what is left once the scale c is taken out."""
        square = self.other_square - 2.0 * c * self.dot + c * c * self.square
        return math.sqrt(max(0.0, square))


@dataclass(frozen=True)
class Projection:
    """What of a reference tensor is needed to compare others with it, whatever they were recorded as.

    `full`: float64, or None once it was dropped to save memory; `sketch`: (4093,) float64; `block_norms`: (blocks,).
    """

    name: str
    blocks: Blocks
    full: torch.Tensor | None
    sketch: torch.Tensor
    norm: float
    block_norms: torch.Tensor


def project(name: str, tensor: torch.Tensor, blocks: Blocks) -> Projection:
    """Take a reference tensor to float64 with its sketch and block norms."""
    full = tensor.detach().to(torch.float64)
    return Projection(name, blocks, full, sketch(full, name), float(full.norm()), _block_norms(full, blocks))


def difference(a: torch.Tensor, reference: Projection) -> Difference:
    """Compare a whole tensor, in any dtype, with a reference that is kept in full."""
    if reference.full is None:
        return sketch_difference(
            sketch(a, reference.name), float(a.double().norm()), row_norms(a) if a.dim() > 1 else None, reference
        )
    a64 = a.detach().to(torch.float64)
    norms = _block_norms(a64, reference.blocks)
    return Difference(
        error=float((a64 - reference.full).norm()),
        norm=reference.norm,
        other_norm=float(a64.norm()),
        dot=float((a64 * reference.full).sum()),
        square=reference.norm**2,
        other_square=float(a64.square().sum()),
        block_errors=(norms - reference.block_norms).abs(),
        block_norms=reference.block_norms,
    )


def sketch_difference(
    a_sketch: torch.Tensor, a_norm: float, a_rows: torch.Tensor | None, reference: Projection
) -> Difference:
    """Compare a sketch, an exact norm and row norms with a reference."""
    blocks = reference.blocks
    if a_rows is not None and blocks.count:
        block_errors = (blocks.pool(a_rows.double()) - reference.block_norms).abs()
        block_norms = reference.block_norms
    else:
        block_errors = block_norms = torch.empty(0, dtype=torch.float64)
    return Difference(
        error=float((a_sketch - reference.sketch).norm()),
        norm=reference.norm,
        other_norm=a_norm,
        dot=float(a_sketch @ reference.sketch),
        square=float(reference.sketch @ reference.sketch),
        other_square=float(a_sketch @ a_sketch),
        block_errors=block_errors,
        block_norms=block_norms,
    )


def record_difference(record: TensorRecord, reference: Projection) -> Difference:
    """Compare a recorded tensor with its reference, by the fullest representation that was recorded.

    Raises:
        NotRecorded: the record has neither `full` nor `sketch`.
        ValueError: shapes differ.
    """
    expected = tuple(reference.full.shape) if reference.full is not None else None
    if expected is not None and record.global_shape != expected:
        raise ValueError(f"{record.name} has shape {record.global_shape}, its reference {expected}")
    full = record.read("full")
    if full is not None:
        return difference(full, reference)
    stored = record.read("sketch")
    if stored is None:
        raise NotRecorded(f"{record.name} was recorded neither in full nor as a sketch")
    return sketch_difference(stored, record.norm, record.read("row_norms"), reference)


def _block_norms(full: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    if not blocks.count or full.dim() < 2:
        return torch.empty(0, dtype=torch.float64)
    return blocks.pool(row_norms(full).double())
