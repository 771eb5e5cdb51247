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

    `input_ids`, `labels`: (B, S) int64; `token_losses`: (B, S) float64; `targets`: of the same shape, −100 where the
    loss does not count or another rank computes it; None where they were not recorded.
    """

    rank: int
    record: MicroBatchRecord
    input_ids: torch.Tensor | None
    labels: torch.Tensor | None
    token_losses: torch.Tensor | None
    targets: torch.Tensor | None = None


@dataclass(frozen=True)
class JoinedStep:
    """One optimizer step of all ranks.

    Micro-batch k of data-parallel rank r is number k · dp_size + r of `batches`, as if one process had taken them all.
    `sharing`: rank → its place among those that train on rows of their own; ranks of one place share theirs.
    `losses`: rank → the scalars that it back-propagated, a micro-batch each.
    """

    capture: Capture
    step: int
    sharing: Mapping[int, int]

    @property
    def dp_size(self) -> int:
        return max(self.sharing.values()) + 1

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.capture.ranks

    @property
    def divides_positions(self) -> bool:
        """Whether ranks that share a row each compute some of its positions (context parallel)."""
        return any(place.get("cp", 0) > 0 for place in self.capture.mesh.values())

    @property
    def losses(self) -> Mapping[int, tuple[float | None, ...]]:
        return {
            rank: tuple(micro.backward for micro in self.capture.micro_batches(self.step, rank=rank))
            for rank in self.ranks
        }

    @cached_property
    def batches(self) -> tuple[RankBatch, ...]:
        by_rank = [self.batches_of(rank) for rank in find_heads(self.sharing)]
        return tuple(batch for together in zip(*by_rank, strict=True) for batch in together)

    def batches_of(self, rank: int) -> list[RankBatch]:
        """One rank's micro-batches, in order."""
        found = []
        for micro in self.capture.micro_batches(self.step, rank=rank):
            batch = self.capture.micro_batch_tensors(self.step, "batch", micro.index, rank=rank)
            losses = self.capture.micro_batch_tensors(self.step, "token_loss", micro.index, rank=rank)
            targets = self.capture.micro_batch_tensors(self.step, "target", micro.index, rank=rank)
            fields = {name.rsplit("/", 1)[-1]: record.read("full") for name, record in batch.items()}
            loss, target = losses.get("token_loss"), targets.get("target")
            found.append(
                RankBatch(
                    rank,
                    micro,
                    fields.get("input_ids"),
                    fields.get("labels"),
                    loss.read("full") if loss else None,
                    target.read("full") if target else None,
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
    """Join one step of a capture of `processes` ranks, of which those of one data-parallel place share rows.

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
    return JoinedStep(capture, step, find_sharing(capture, dp_size=dp_size))


def find_sharing(capture: Capture, *, dp_size: int) -> Mapping[int, int]:
    """Rank → its place on the data-parallel axis, as the capture tells it.

    Where it does not, that axis is the outermost one, as in torch's examples: ranks next to each other share a model.
    """
    if all("dp" in capture.mesh.get(rank, {}) for rank in capture.ranks):
        return {rank: capture.mesh[rank]["dp"] for rank in capture.ranks}
    width = max(len(capture.ranks) // dp_size, 1)
    return {rank: place // width for place, rank in enumerate(capture.ranks)}


def find_heads(sharing: Mapping[int, int]) -> tuple[int, ...]:
    """The first rank of each place on the data-parallel axis, in the order of places."""
    heads: dict[int, int] = {}
    for rank in sorted(sharing):
        heads.setdefault(sharing[rank], rank)
    return tuple(heads[place] for place in sorted(heads))
