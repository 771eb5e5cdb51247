"""The lower precision, if any, that explains the first wrong module of a second pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from checks.captures.capture import Capture
from checks.diagnosis.resynchronised import Outputs, captured_modules, run_level, slice_document
from checks.diagnosis.rounding import Rounding, explain
from checks.references.batch import Document, MicroBatch
from checks.references.step import lay_out


def explain_module(
    model: nn.Module,
    path: str,
    capture: Capture,
    micro_batches: Sequence[MicroBatch],
    *,
    step: int,
    autocast: torch.dtype | None = None,
) -> Rounding | None:
    """The lower precision in which the reference's module, on the framework's inputs, gives the framework's output.

    `model`: the reference in the run's own precision, with eager attention, whose softmax is an operation by itself.
    """
    captured = [captured_modules(capture, step, index) for index in range(len(micro_batches))]
    seen: dict[tuple[int, Document], torch.Tensor] = {}
    for index, micro in enumerate(micro_batches):
        output = captured[index].get(path, (None, None))[1]
        for document in micro.documents:
            part = None if output is None else slice_document(output, document, micro.input_ids.shape)
            if part is not None:
                seen[index, document] = part.double()
    dtype = next(model.parameters()).dtype

    def compute() -> Mapping[tuple[int, Document], torch.Tensor]:
        found: dict[str, Outputs] = {}
        for batch in (batch for group in lay_out(micro_batches, "documents") for batch in group):
            micro = batch.pieces[0].micro
            shape = micro_batches[micro].input_ids.shape
            run_level(model, batch, captured[micro], {path}, found, dtype=dtype, shape=shape)
        return found[path].outputs

    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        return explain(compute, seen, model)
