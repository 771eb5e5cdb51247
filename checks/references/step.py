"""One training step's loss and gradients from their definition, on the captured batch.

The base form computes every document alone, without padding, mask or packing, in float64. The other layouts compute
the same numbers in forms that must not matter; their deviation in the run's own precision is the noise floor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from checks.references.batch import Document, MicroBatch
from checks.references.kept import IGNORED
from checks.references.loss import token_losses
from checks.references.objectives import Computed, Objective, Span, TokenMean

Layout = Literal["documents", "right", "left", "merged"]


@dataclass(frozen=True)
class Piece:
    """Where a forward's row comes from: a document of micro-batch `micro`, put at column `offset`."""

    micro: int
    document: Document
    offset: int


@dataclass(frozen=True)
class ForwardBatch:
    """(b, s) input_ids, targets (−100: not counted) and a (b, s) mask, None where nothing is padded."""

    input_ids: torch.Tensor
    targets: torch.Tensor
    attention_mask: torch.Tensor | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class LogitRounding:
    """A loss whose gradient by the logits, `scale` times that of the step's objective, comes out in another dtype."""

    dtype: torch.dtype
    scale: float

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return (gradient * self.scale).to(self.dtype).to(gradient.dtype) / self.scale


@dataclass(frozen=True)
class StepResult:
    """`loss`: the objective; `token_losses`: one (B, S) float64 a micro-batch, 0 where not counted; `gradients`: by
    name.
    """

    loss: float
    token_losses: tuple[torch.Tensor, ...]
    gradients: Mapping[str, torch.Tensor]


def count_targets(micro_batches: Sequence[MicroBatch]) -> int:
    """How many tokens the step's loss counts, over all its micro-batches: the global denominator."""
    return sum(int((micro.targets != IGNORED).sum()) for micro in micro_batches)


def lay_out(micro_batches: Sequence[MicroBatch], layout: Layout) -> tuple[tuple[ForwardBatch, ...], ...]:
    """Arrange the documents for computation: one tuple of forwards a back-propagated scalar.

    `documents`: each alone; `right`, `left`: those of a micro-batch padded on that side; `merged`: all in one batch.
    """
    groups: list[list[Piece]] = [
        [Piece(index, document, 0) for document in micro.documents] for index, micro in enumerate(micro_batches)
    ]
    if layout == "documents":
        return tuple(tuple(_pad([piece], micro_batches, side="right") for piece in group) for group in groups)
    if layout == "merged":
        return ((_pad([piece for group in groups for piece in group], micro_batches, side="right"),),)
    return tuple((_pad(group, micro_batches, side=layout),) for group in groups)


def _pad(
    pieces: Sequence[Piece], micro_batches: Sequence[MicroBatch], *, side: Literal["right", "left"]
) -> ForwardBatch:
    lengths = [piece.document.stop - piece.document.start for piece in pieces]
    width = max(lengths)
    input_ids = torch.zeros(len(pieces), width, dtype=torch.int64)
    targets = torch.full((len(pieces), width), IGNORED, dtype=torch.int64)
    mask = torch.zeros(len(pieces), width, dtype=torch.int64)
    placed = []
    for row, (piece, length) in enumerate(zip(pieces, lengths, strict=True)):
        offset = 0 if side == "right" else width - length
        micro, span = micro_batches[piece.micro], slice(piece.document.start, piece.document.stop)
        input_ids[row, offset : offset + length] = micro.input_ids[piece.document.row, span]
        targets[row, offset : offset + length] = micro.targets[piece.document.row, span]
        mask[row, offset : offset + length] = 1
        placed.append(Piece(piece.micro, piece.document, offset))
    return ForwardBatch(input_ids, targets, None if bool(mask.all()) else mask, tuple(placed))


def run_step(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    *,
    denominator: int,
    layout: Layout = "documents",
    autocast: torch.dtype | None = None,
    forward: Callable[[nn.Module, ForwardBatch], torch.Tensor] | None = None,
    auxiliary: Callable[[Sequence[ForwardBatch]], torch.Tensor | None] | None = None,
    before_forward: Callable[[ForwardBatch], None] | None = None,
    objective: Objective | None = None,
    loss_scale: float = 1.0,
    rounding: LogitRounding | None = None,
    lose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = token_losses,
) -> StepResult:
    """Σ over counted tokens of −log p(next token), over `denominator`, and its gradient by every trainable parameter.

    `objective`: another one in its place.
    `before_forward` is told what each forward will compute (to replay router choices). `auxiliary` adds a term to
    each back-propagated scalar (a load-balancing loss over the forwards just made). Gradients come in the dtype of
    their parameters; the losses are reported in float64. `loss_scale`: power of two by which each scalar is multiplied,
    and the gradients are divided again, so that small ones survive float16. `rounding`: of the gradient by the logits.
    `lose`: what logits and targets make of each position.
    """
    forward = forward or forward_logits
    reduce = objective or TokenMean(denominator)
    model.zero_grad(set_to_none=True)
    losses = [torch.zeros(micro.input_ids.shape, dtype=torch.float64) for micro in micro_batches]
    total = 0.0
    for group in lay_out(micro_batches, layout):
        computed: list[Computed] = []
        for batch in group:
            if before_forward is not None:
                before_forward(batch)
            with _autocast(autocast):
                logits = forward(model, batch)
            wide = logits if logits.dtype == torch.float64 else logits.float()
            if rounding is not None:
                wide.register_hook(rounding)  # type: ignore[no-untyped-call]
            per_token = lose(wide, batch.targets)
            rows = tuple((piece.micro, piece.document.row) for piece in batch.pieces)
            spans = tuple(Span(p.offset, p.document.start, p.document.stop) for p in batch.pieces)
            computed.append(Computed(per_token, rows, spans))
            scatter(per_token.detach(), batch, losses)
        if not computed:
            continue
        scalar = reduce(computed)
        extra = auxiliary(group) if auxiliary is not None else None
        scalar = scalar if extra is None else scalar + extra
        (scalar if loss_scale == 1.0 else scalar * loss_scale).backward()  # type: ignore[no-untyped-call]
        total += float(scalar.detach())
    gradients = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    if loss_scale != 1.0:
        gradients = {name: gradient / loss_scale for name, gradient in gradients.items()}
    return StepResult(total, tuple(losses), gradients)


def forward_logits(model: nn.Module, batch: ForwardBatch) -> torch.Tensor:
    """(b, s, V) logits of a plain or a Hugging Face model."""
    out = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=positions(batch))
    return out if isinstance(out, torch.Tensor) else out.logits


def positions(batch: ForwardBatch) -> torch.Tensor | None:
    """Positions from 0 at each row's first real token; None where the row starts at column 0."""
    if all(piece.offset == 0 for piece in batch.pieces):
        return None
    assert batch.attention_mask is not None
    return (batch.attention_mask.cumsum(-1) - 1).clamp(min=0)


def scatter(per_token: torch.Tensor, batch: ForwardBatch, losses: Sequence[torch.Tensor]) -> None:
    """Put the (b, s) values of a forward to the places in their micro-batches, (B, S) each."""
    for row, piece in enumerate(batch.pieces):
        document = piece.document
        length = document.stop - document.start
        values = per_token[row, piece.offset : piece.offset + length].to(torch.float64)
        losses[piece.micro][document.row, document.start : document.stop] = values


def _autocast(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)
