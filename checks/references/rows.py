"""The rows that reached the model in the captured steps, and which of their tokens the labels ask to learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture
from checks.references.given import join_pair_labels, read_given
from checks.references.kept import IGNORED, lay_labels, lay_targets, read_kept

SHIFTS = (0, 1, 2, -1, -2)
"""by how many positions labels are tried to be ahead of the tokens: 0 where the model shifts, 1 where it need not"""


@dataclass(frozen=True)
class Row:
    """One row of a micro-batch. `ids`: its tokens without padding; `first`: the position of the first of them.

    `trained`: a token each, whether the labels ask for it (never of the first token, which nothing predicts); None
    where no labels were recorded that can be laid along the tokens. `restarts`: the tokens at which position ids say
    that a document begins. `loose`: pad tokens at the end that may be padding, where no attention mask tells.
    `padding_trained`: positions that the mask leaves out and the labels ask for.
    """

    step: int
    rank: int
    micro_batch: int
    row: int
    first: int
    ids: tuple[int, ...]
    trained: tuple[bool, ...] | None
    restarts: tuple[int, ...] = ()
    loose: int = 0
    padding_trained: int = 0

    @property
    def place(self) -> str:
        """Where the row stands, for a person."""
        rank = f", rank {self.rank}" if self.rank else ""
        return f"step {self.step}{rank}, micro-batch {self.micro_batch}, row {self.row}"


@dataclass(frozen=True)
class Labels:
    """How the labels of one micro-batch lie along its tokens.

    `ahead`: the labels are the tokens so many positions on, None where they are not the row's tokens at all; `loss`:
    the same of the targets that the loss counted, seen from the position that predicts them (1 is right).
    """

    place: str
    ahead: int | None
    loss: int | None
    found: str | None = None
    """why the labels could not be read"""


@dataclass(frozen=True)
class Batches:
    """All rows of the captured steps, in the order of training, and their labels a micro-batch."""

    rows: tuple[Row, ...]
    labels: tuple[Labels, ...]
    missing: tuple[str, ...] = ()
    """micro-batches without readable token ids"""


def read_rows(capture: Capture, *, pad_token_id: int | None) -> Batches:
    """Read the rows of every captured step and rank; their padding is what the attention mask leaves out."""
    rows: list[Row] = []
    labels: list[Labels] = []
    missing: list[str] = []
    for rank in capture.ranks:
        for step in sorted(capture.records[rank]):
            for record in capture.micro_batches(step, rank=rank):
                place = f"step {step}{f', rank {rank}' if rank else ''}, micro-batch {record.index}"
                fields = {
                    name: tensor.read("full")
                    for name, tensor in capture.micro_batch_tensors(step, "batch", record.index, rank=rank).items()
                    if name in ("input_ids", "labels", "attention_mask", "position_ids")
                }
                ids = fields.get("input_ids")
                if ids is None or ids.dim() != 2:
                    missing.append(place)
                    continue
                if fields.get("labels") is None:
                    fields["labels"] = join_pair_labels(read_given(capture, step, record.index, rank=rank), ids)
                seen = _targets(capture, step, record.index, rank=rank, ids=ids)
                if fields["labels"] is not None:
                    kept = read_kept(capture, step, record.index, length=ids.shape[1], rank=rank)
                    fields["labels"] = lay_labels(fields["labels"], ids, kept)
                lying, trained = _read_labels(place, ids, fields.get("labels"), seen)
                labels.append(lying)
                rows += _cut_rows((step, rank, record.index), ids, fields, trained, pad_token_id)
    return Batches(tuple(rows), tuple(labels), tuple(missing))


def _targets(capture: Capture, step: int, index: int, *, rank: int, ids: torch.Tensor) -> torch.Tensor | None:
    """(B, S) int64: what the loss counted at each position, −100 where it did not; None where not recorded so."""
    found = [record.read("full") for record in capture.micro_batch_tensors(step, "target", index, rank=rank).values()]
    if len(found) != 1 or found[0] is None:
        return None
    return lay_targets(found[0], ids, read_kept(capture, step, index, length=ids.shape[1], rank=rank))


def _read_labels(
    place: str, ids: torch.Tensor, labels: torch.Tensor | None, targets: torch.Tensor | None
) -> tuple[Labels, torch.Tensor | None]:
    """How labels and targets lie along the tokens, and (B, S) bool: the tokens that are asked for."""
    loss = None if targets is None or not (targets != IGNORED).any() else find_shift(targets, ids)
    if labels is None:
        # They never reached the model: what the loss counted is all that there is.
        if targets is None:
            return Labels(place, None, None, "neither labels nor the loss's targets were recorded"), None
        return Labels(place, loss, loss), _move(targets != IGNORED, loss if loss is not None else 1)
    if labels.shape != ids.shape:
        found = f"labels have the shape {tuple(labels.shape)}, the tokens {tuple(ids.shape)}"
        return Labels(place, None, loss, found), None
    ahead = find_shift(labels, ids)
    return Labels(place, ahead, loss), _move(labels != IGNORED, ahead or 0)


def find_shift(labels: torch.Tensor, ids: torch.Tensor) -> int | None:
    """By how many positions the labels that count are ahead of the tokens; 0 where none count, None where they differ.

    labels, ids: (B, S) int64.
    """
    real = labels != IGNORED
    for shift in SHIFTS:
        inside = real.clone()
        if shift:
            inside[:, -shift:] &= shift < 0
            inside[:, : max(-shift, 0)] = False
        if bool((torch.roll(ids, -shift, dims=1) == labels)[inside].all()) and (not real.any() or inside.any()):
            return shift
    return None


def _move(asked: torch.Tensor, by: int) -> torch.Tensor:
    """Mark the tokens that are asked for, from the positions at which their labels stand."""
    moved = torch.zeros_like(asked)
    length = asked.shape[1]
    start, stop = max(by, 0), min(length, length + by)
    moved[:, start:stop] = asked[:, start - by : stop - by]
    return moved


def _cut_rows(
    where: tuple[int, int, int],
    ids: torch.Tensor,
    fields: dict[str, torch.Tensor | None],
    trained: torch.Tensor | None,
    pad_token_id: int | None,
) -> Iterator[Row]:
    mask, positions = fields.get("attention_mask"), fields.get("position_ids")
    length = ids.shape[1]
    for row in range(ids.shape[0]):
        first, stop, loose = 0, length, 0
        if mask is not None and mask.shape == ids.shape:
            kept = mask[row].nonzero().flatten()
            first, stop = (int(kept[0]), int(kept[-1]) + 1) if kept.numel() else (0, 0)
        elif pad_token_id is not None:
            other = (ids[row] != pad_token_id).nonzero().flatten()
            loose = length - (int(other[-1]) + 1 if other.numel() else 0)
        asked = None if trained is None else trained[row]
        restarts: tuple[int, ...] = ()
        if positions is not None and positions.shape == ids.shape:
            restarts = tuple(int(place) for place in (positions[row, first:stop] == 0).nonzero().flatten())
        yield Row(
            *where,
            row=row,
            first=first,
            ids=tuple(ids[row, first:stop].tolist()),
            trained=None if asked is None else (False, *asked[first + 1 : stop].tolist())[: stop - first],
            restarts=restarts,
            loose=loose,
            padding_trained=0 if asked is None else int(asked.sum() - asked[first:stop].sum()),
        )
