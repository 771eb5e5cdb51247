"""The step that several ranks took together, as one process would have recorded it.

Ranks that share rows each compute some of the positions (context parallel), or all the same ones (tensor parallel):
what belongs to a token is zero, or −100, where another rank computes it, so that the parts add up. Scalars are each
rank's share of the step's objective. Gradients and parameters are put together of their shards. Micro-batch k of
data-parallel rank r is number k · dp_size + r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from checks.captures.capture import Capture, TensorRecord
from checks.captures.records import MicroBatchRecord, StepRecord
from checks.parallel.joining import JoinedStep, join_ranks
from checks.parallel.tensors import JoinedTensor, NotJoined
from checks.references.kept import IGNORED

TOKENS = frozenset({"token_loss", "advantages", "old_per_token_logps", "ref_per_token_logps", "values"})
"""tensors of a value a token, of which each context-parallel rank has its own positions"""

WHOLE = (
    *("gradient", "gradient_clipped", "parameter_before", "parameter_after", "update"),
    *("optimizer_state_before", "optimizer_state"),
)
"""kinds of tensors that ranks hold parts of"""


@dataclass(frozen=True)
class UnitedRecord(TensorRecord):
    """A tensor that is put together of what several ranks recorded."""

    joined: JoinedTensor | torch.Tensor | None = None

    @property
    def norm(self) -> float:
        assert self.joined is not None
        return float(self.joined.double().norm()) if isinstance(self.joined, torch.Tensor) else self.joined.norm

    def read(self, representation: str) -> torch.Tensor | None:
        if isinstance(self.joined, torch.Tensor):
            return self.joined if representation == "full" else None
        assert self.joined is not None
        return self.joined.read(representation)


@dataclass(frozen=True)
class UnitedCapture(Capture):
    """`divided`: as the ranks recorded it; this one has one rank, 0."""

    divided: Capture | None = None
    dp_size: int = 1

    @cached_property
    def records(self) -> Mapping[int, Mapping[int, StepRecord]]:
        return {0: {number: _unite_record(step) for number, step in self._joined.items()}}

    @cached_property
    def mesh(self) -> Mapping[int, Mapping[str, int]]:
        return {0: {}}

    @cached_property
    def _joined(self) -> Mapping[int, JoinedStep]:
        assert self.divided is not None
        steps = sorted({step for records in self.divided.records.values() for step in records})
        processes = len(self.divided.ranks)
        return {step: join_ranks(self.divided, step, processes=processes, dp_size=self.dp_size) for step in steps}

    @cached_property
    def _index(self) -> Mapping[tuple[int, int, str], tuple[TensorRecord, ...]]:
        found: dict[tuple[int, int, str], tuple[TensorRecord, ...]] = {}
        for number, step in self._joined.items():
            for kind in WHOLE:
                found[number, 0, kind] = tuple(_unite_tensor(each) for each in step.tensors(kind).values())
            for kind in ("batch", "target", "token_loss", "loss_input"):
                found[number, 0, kind] = tuple(_unite_micro_batches(step, kind))
            found[number, 0, "rollout"] = tuple(_unite_rollout(step))
        return found


def unite(capture: Capture, *, processes: int, dp_size: int) -> Capture:
    """The capture as of one process.

    Raises:
        NotJoined: a rank left no record, or another number of micro-batches.
    """
    if processes == 1:
        return capture
    united = UnitedCapture(capture.path, capture.manifest, divided=capture, dp_size=dp_size)
    if len(capture.ranks) != processes:
        raise NotJoined(f"{len(capture.ranks)} of {processes} ranks left a record")
    _ = united.records, united._index
    return united


def _unite_record(step: JoinedStep) -> StepRecord:
    """The record of rank 0 with the micro-batches of all, and what any rank trains."""
    records = [step.capture.step(step.step, rank=rank) for rank in step.ranks]
    micro_batches = []
    for number, sharers in enumerate(_micro_batches(step)):
        own = [step.capture.micro_batches(step.step, rank=rank)[index] for rank, index in sharers]
        shares = [each.backward for each in own if each.backward is not None]
        united = math.fsum(shares) if shares else None
        micro_batches.append(_renumber(own[-1], number, united))
    places = step.dp_size  # of each a backward between two of one rank
    return replace(
        records[0],
        micro_batches=tuple(micro_batches),
        clips=tuple(replace(clip, after_backward=clip.after_backward * places) for clip in records[0].clips),
        trainable=tuple(dict.fromkeys(name for record in records for name in record.trainable)),
        scalars={path: values for record in records for path, values in record.scalars.items()},
    )


def _renumber(record: MicroBatchRecord, number: int, backward: float | None) -> MicroBatchRecord:
    return replace(record, index=number, backward=backward)


def _micro_batches(step: JoinedStep) -> Sequence[Sequence[tuple[int, int]]]:
    """For each micro-batch of the step, a rank for each part of its positions, and the micro-batch's number there."""
    counts = {rank: len(step.capture.micro_batches(step.step, rank=rank)) for rank in step.ranks}
    places = range(step.dp_size)
    return [
        [(rank, index) for rank in _sharers(step, place)] for index in range(min(counts.values())) for place in places
    ]


def _sharers(step: JoinedStep, place: int) -> list[int]:
    """Of the ranks that share rows, one for each context-parallel coordinate: the last, which has the loss."""
    chosen: dict[int, int] = {}
    for rank, theirs in step.sharing.items():
        if theirs == place:
            chosen[step.capture.mesh.get(rank, {}).get("cp", 0)] = rank
    return list(chosen.values())


def _unite_micro_batches(step: JoinedStep, kind: str) -> list[TensorRecord]:
    found: list[TensorRecord] = []
    for number, sharers in enumerate(_micro_batches(step)):
        parts = [step.capture.micro_batch_tensors(step.step, kind, index, rank=rank) for rank, index in sharers]
        for key in parts[0]:
            found.append(replace(_unite_parts([part[key] for part in parts if key in part]), micro_batch=number))
    return found


def _unite_rollout(step: JoinedStep) -> list[TensorRecord]:
    """What the ranks of each data-parallel place generated, one after the other."""
    sides: dict[str, list[TensorRecord]] = {}
    for place in range(step.dp_size):
        parts = [step.capture.tensors(step.step, "rollout", rank=rank) for rank in _sharers(step, place)]
        for name in parts[0]:
            sides.setdefault(name, []).append(_unite_parts([part[name] for part in parts if name in part]))
    return [records[0] if len(records) == 1 else _concatenate(records) for records in sides.values()]


def _unite_parts(records: Sequence[TensorRecord]) -> TensorRecord:
    """One tensor of ranks that share rows."""
    name = records[0].name
    by_token = name in TOKENS or records[0].kind == "token_loss"
    if len(records) == 1 or not (by_token or records[0].kind == "target"):
        return records[0]
    read = [record.read("full") for record in records]
    values = [value for value in read if value is not None]
    if len(values) < len(records) or len({value.shape for value in values}) > 1:
        raise NotJoined(f"the ranks' parts of {records[0].kind} {name} are not of one batch")
    if records[0].kind == "target":
        united = torch.stack(values).amax(0)
        return _hold(records[0], united)
    if values[0].dim() < 2:  # one value a row, which all have
        return records[0]
    return _hold(records[0], torch.stack(values).sum(0))


def _concatenate(records: Sequence[TensorRecord]) -> TensorRecord:
    values = [value for record in records if (value := record.read("full")) is not None]
    if len(values) < len(records) or len({value.shape[1:] for value in values}) > 1:
        raise NotJoined(f"the ranks' {records[0].name} are of several widths")
    return _hold(records[0], torch.cat(values))


def _hold(record: TensorRecord, value: torch.Tensor) -> TensorRecord:
    assert IGNORED < 0  # so that the largest of the ranks' targets is the one that counts
    return UnitedRecord(**{**vars(record), "global_shape": tuple(value.shape)}, joined=value)


def _unite_tensor(joined: JoinedTensor) -> TensorRecord:
    record = joined.parts[0].record
    whole = {"global_shape": joined.global_shape, "where": tuple((0, size) for size in joined.global_shape)}
    stats = {**record.stats, "nonfinite": sum(part.record.nonfinite for part in joined.parts)}
    # The representations of one part are not the whole's: read() puts all parts together.
    return UnitedRecord(
        **{**vars(record), **whole, "placement": {}, "representations": {}, "stats": stats}, joined=joined
    )
