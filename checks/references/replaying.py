"""A reference's model that chooses experts and keys as the run did, for as long as it is compared with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from checks.captures.capture import Capture
from checks.references.batch import MicroBatch
from checks.references.routing import Choices, Replay, read_choices
from checks.references.selection import SelectionReplay, Selections, read_selections
from checks.references.step import ForwardBatch

Begin = Callable[[ForwardBatch], None]
"""to be called before each forward, with the documents that it computes"""


@dataclass(frozen=True)
class Chosen:
    """What the routers and the indexers of a run chose in one step."""

    choices: Choices
    selections: Selections
    micro_batches: Sequence[MicroBatch]

    @classmethod
    def read(cls, capture: Capture, step: int, micro_batches: Sequence[MicroBatch]) -> Chosen:
        return cls(
            read_choices(capture, step, micro_batches), read_selections(capture, step, micro_batches), micro_batches
        )

    @contextmanager
    def replayed_by(self, model: nn.Module) -> Iterator[Begin]:
        """Within, `model` chooses as recorded."""
        replays = (Replay(self.choices, self.micro_batches), SelectionReplay(self.selections, self.micro_batches))
        for replay in replays:
            replay.attach(model)

        def begin(batch: ForwardBatch) -> None:
            for replay in replays:
                replay.begin(batch)

        try:
            yield begin
        finally:
            for replay in replays:
                replay.detach()
