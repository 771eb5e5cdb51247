"""What the trainer's loss was given beside the model's batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from checks.captures.capture import Capture
from checks.references.kept import IGNORED


def read_given(capture: Capture, step: int, index: int, *, rank: int = 0) -> dict[str, torch.Tensor]:
    """Name → what the trainer's loss was given beside the model's batch; empty where that was not recorded."""
    records = capture.micro_batch_tensors(step, "loss_input", index, rank=rank)
    read = {name: record.read("full") for name, record in records.items()}
    return {name: tensor for name, tensor in read.items() if tensor is not None}


def join_pair_labels(given: Mapping[str, torch.Tensor], input_ids: torch.Tensor) -> torch.Tensor | None:
    """(B, S) int64: labels of the preferred rows and then of the rejected ones, where they were given apart."""
    sides = [given.get(name) for name in ("chosen_labels", "rejected_labels")]
    width = input_ids.shape[1]
    padded = [
        torch.nn.functional.pad(side, (0, width - side.shape[1]), value=IGNORED)
        for side in sides
        if side is not None and side.dim() == 2 and side.shape[1] <= width
    ]
    joined = torch.cat(padded) if len(padded) == 2 else None
    return joined if joined is not None and joined.shape == input_ids.shape else None
