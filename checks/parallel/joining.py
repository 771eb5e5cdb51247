"""The ranks of a capture, joined into the step that they took together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from checks.captures.capture import Capture
from checks.captures.records import MicroBatchRecord
from checks.parallel.tensors import JoinedTensor, NotJoined, Part, join_tensor


@dataclass(frozen=True)
class RankBatch:
    """One micro-batch of one data-parallel rank, and what came of it.

    `input_ids`, `labels`: (B, S) int64; `token_losses`: (B, S)
    float64; None where they were not recorded.
    """

    rank: int
    record: MicroBatchRecord
    input_ids: torch.Tensor | None
    labels: torch.Tensor | None
    token_losses: torch.Tensor | None


@dataclass(frozen=True)
class JoinedStep:
    """One optimizer step of all ranks.

    Micro-batch k of data-parallel rank r is number k · dp_size + r of `batches`, as if one process had taken them all.
    `losses`: rank → the scalars that it back-propagated, a micro-batch each.
    """

    capture: Capture
    step: int
    dp_size: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.capture.ranks

    @property
    def width(self) -> int:
        """How many ranks train on the same rows: the degree of every other axis together."""
        return len(self.ranks) // self.dp_size

    @property
    def losses(self) -> Mapping[int, tuple[float | None, ...]]:
        return {
            rank: tuple(micro.backward for micro in self.capture.micro_batches(self.step, rank=rank))
            for rank in self.ranks
        }

    @cached_property
    def batches(self) -> tuple[RankBatch, ...]:
        by_rank = [self.batches_of(rank) for rank in self.ranks[:: self.width]]
        return tuple(batch for together in zip(*by_rank, strict=True) for batch in together)

    def batches_of(self, rank: int) -> list[RankBatch]:
        """One rank's micro-batches, in order."""
        found = []
        for micro in self.capture.micro_batches(self.step, rank=rank):
            batch = self.capture.micro_batch_tensors(self.step, "batch", micro.index, rank=rank)
            losses = self.capture.micro_batch_tensors(self.step, "token_loss", micro.index, rank=rank)
            fields = {name.rsplit("/", 1)[-1]: record.read("full") for name, record in batch.items()}
            loss = losses.get("token_loss")
            found.append(
                RankBatch(
                    rank, micro, fields.get("input_ids"), fields.get("labels"), loss.read("full") if loss else None
                )
            )
        return found

    def tensors(self, kind: str) -> Mapping[tuple[str, str | None], JoinedTensor]:
        """(name, field) → the tensor of all ranks, in the order of the manifest.

        Raises:
            NotJoined: the parts of one do not make a whole.
        """
        parts: dict[tuple[str, str | None], list[Part]] = {}
        for rank in self.ranks:
            for record in self.capture.all_tensors(self.step, kind, rank=rank):
                parts.setdefault((record.name, record.field), []).append(Part(rank, record))
        return {key: join_tensor(found, ranks=self.ranks) for key, found in parts.items()}


def join_ranks(capture: Capture, step: int, *, processes: int, dp_size: int) -> JoinedStep:
    """Join one step of a capture of `processes` ranks, of which each `processes / dp_size` in a row share their rows.

    Data parallel is the outermost axis of the mesh, as in torch's examples: ranks next to each other share a model.

    Raises:
        NotJoined: a rank is missing, lacks the step, or took another number of micro-batches.
    """
    missing = sorted(set(range(processes)) - set(capture.ranks))
    if missing:
        said = next((f": {note.why}" for note in capture.missing if note.rank == missing[0]), "")
        raise NotJoined(
            f"rank {missing[0]} of {processes} left no record{said or '; record the capture again with all ranks'}"
        )
    extra = sorted(set(capture.ranks) - set(range(processes)))
    if extra:
        raise NotJoined(f"rank {extra[0]} is recorded in a run that was asked to have {processes}")
    counts = {}
    for rank in capture.ranks:
        if step not in capture.records[rank]:
            taken = sorted(capture.records[rank])
            raise NotJoined(f"rank {rank} recorded steps {taken}, and not step {step}: the ranks disagree on steps")
        counts[rank] = len(capture.micro_batches(step, rank=rank))
    odd = [rank for rank, count in counts.items() if count != counts[0]]
    if odd:
        raise NotJoined(
            f"rank {odd[0]} took {counts[odd[0]]} micro-batches in step {step}, rank 0 took {counts[0]}: "
            "give a data set that divides over the ranks"
        )
    return JoinedStep(capture, step, dp_size)
