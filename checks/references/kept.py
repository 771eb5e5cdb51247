"""Positions whose logits a model was asked for: labels, targets and losses are as long as these, not as the rows.

Hugging Face's models take `logits_to_keep`: so many last positions, or the positions themselves. ms-swift asks for
those that its labels count, and cuts the labels to them.
"""

from __future__ import annotations

import torch

from checks.captures.capture import Capture

IGNORED = -100
"""The label that a loss does not count; PyTorch's default `ignore_index`."""

STATED = "token_losses"
"""Where a framework's hooks say the losses of the positions themselves."""


def read_kept(capture: Capture, step: int, index: int, *, length: int, rank: int = 0) -> torch.Tensor | None:
    """(K,) int64: the positions of a micro-batch that have logits, ascending; None where all of `length` have."""
    record = next(each for each in capture.micro_batches(step, rank=rank) if each.index == index)
    if record.loss_source == STATED:
        return None  # made of hidden states, all of them, whichever logits the model was asked for
    count = record.arguments.get("logits_to_keep")
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count < length:
        return torch.arange(length - count, length)
    given = capture.micro_batch_tensors(step, "batch", index, rank=rank).values()
    found = next((one.read("full") for one in given if one.name.rsplit("/", 1)[-1] == "logits_to_keep"), None)
    if found is None or found.dim() > 1:
        return None
    return found.nonzero().flatten() if found.dtype == torch.bool else found.reshape(-1).long()


def lay_targets(tensor: torch.Tensor, ids: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor | None:
    """(B, S): a recorded (B, K), (B, K − 1) or flat tensor of targets or losses laid along `ids`; None for any other.

    The last of the K positions has no target where one is missing. Positions without logits are filled with −100, or
    with 0 where the tensor holds losses.
    """
    rows, length = ids.shape
    width = length if kept is None else len(kept)
    if tensor.dim() == 1 and tensor.numel() in (rows * width, rows * (width - 1)):
        tensor = tensor.reshape(rows, -1)
    fill = IGNORED if tensor.dtype == torch.int64 else 0
    if tensor.shape == (rows, width - 1):
        tensor = torch.nn.functional.pad(tensor, (0, 1), value=fill)
    if tensor.shape != (rows, width):
        return None
    if kept is None:
        return tensor
    laid = torch.full((rows, length), fill, dtype=tensor.dtype)
    laid[:, kept] = tensor
    return laid


def lay_unpadded(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """(B, S): a flat tensor of targets or losses with padding left out laid along the batch; None for any other.

    mask: (B, S), 0 where a token is padding. Multimodal models of transformers before 4.57 cut logits and labels so:
    what remains are the positions whose *next* token is none.
    """
    if mask is None or tensor.dim() != 1:
        return None
    before_a_token = torch.nn.functional.pad(mask[:, 1:] != 0, (0, 1))
    if tensor.numel() != int(before_a_token.sum()):
        return None
    laid = torch.full(mask.shape, IGNORED if tensor.dtype == torch.int64 else 0, dtype=tensor.dtype)
    laid[before_a_token] = tensor
    return laid


def lay_labels(labels: torch.Tensor, ids: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """(B, S) int64: labels cut to the K positions with logits, each back at its token; others are returned as they are.

    A model's loss pairs the logits of the j-th position kept with the label j + 1, so that this label is that of the
    token after that position. The first label has no logits before it.
    """
    if kept is None or labels.shape != (ids.shape[0], len(kept)) or labels.shape == ids.shape:
        return labels
    laid = torch.full_like(ids, IGNORED)
    laid[:, kept[:-1] + 1] = labels[:, 1:]
    return laid
