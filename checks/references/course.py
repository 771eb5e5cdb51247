"""The batches of every step of a run, captured or not: rows by their prints, tokens and labels from the data set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from checks.captures.capture import Capture
from checks.captures.row_prints import read_forwards
from checks.errors import CaptureError
from checks.references.batch import Document, MicroBatch
from checks.references.convention import Convention, NoConvention
from checks.references.epochs import follow
from checks.references.kept import IGNORED
from checks.spec import RunSpec

Course = tuple[tuple[MicroBatch, ...], ...]
"""a step each, from the first on: its micro-batches"""


class UnknownRows(ValueError):
    """What a run trained on in some step cannot be told; `str()` is one sentence without a full stop."""


def read_course(spec: RunSpec, capture: Capture, convention: Convention) -> Course:
    """Make the batches of steps 1 to `spec.steps` from the data set's samples, in the order of the run.

    Raises:
        UnknownRows: rows were not printed, are no samples, or it is not known which of their tokens count.
    """
    dataset = convention.dataset
    try:
        forwards = read_forwards(capture)
    except CaptureError as error:
        raise UnknownRows(str(error).rstrip(".")) from error
    lost = next((note.why for note in capture.missing if note.what == "rows"), None)
    if lost is not None:
        raise UnknownRows(f"not all rows were printed: {lost}")
    coverage = follow(forwards, dataset, packing=spec.packs, batch=spec.batch)
    if coverage.unknown:
        found = f"{coverage.unknown} of {len(coverage.units)} rows are no sample of the data set"
        raise UnknownRows(f"{found} (see data.template), so that they cannot be trained on again")
    steps: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for unit in coverage.units:
        assert unit.sample is not None
        steps[unit.step][unit.micro_batch].append(unit.sample)
    for step in range(1, spec.steps + 1):
        if step not in steps:
            raise UnknownRows(f"no row of step {step} was printed; record again with the present plumbline-capture")
    try:
        return tuple(
            tuple(_lay(samples, convention) for _, samples in sorted(steps[step].items()))
            for step in range(1, spec.steps + 1)
        )
    except NoConvention as error:
        raise UnknownRows(str(error)) from error


def _lay(samples: Sequence[int], convention: Convention) -> MicroBatch:
    """One sample a row, padded on the right; the loss at a position counts where the next token is to be learned."""
    rows = [convention.dataset.cut(index) for index in samples]
    shape = len(rows), max(len(row) for row in rows)
    input_ids = torch.zeros(shape, dtype=torch.int64)
    counted = torch.zeros(shape, dtype=torch.bool)
    for row, (ids, index) in enumerate(zip(rows, samples, strict=True)):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        counted[row, : len(ids) - 1] = torch.tensor(convention.counted(index)[1:], dtype=torch.bool)
    following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1))
    return MicroBatch(
        input_ids=input_ids,
        targets_seen=torch.where(counted, following, IGNORED),
        counted=counted,
        token_losses_seen=None,
        position_ids=None,
        documents=tuple(Document(row, 0, len(ids)) for row, ids in enumerate(rows)),
        boundaries="data",
        unbounded=None,
    )
