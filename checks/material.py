"""What the judges read: the runs of one validation, and the references computed on their captures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checks.captures.capture import Capture
from checks.diagnosis.first_divergence import Divergence
from checks.references.batch import MicroBatch
from checks.references.definition import Definition
from checks.references.reference import Reference
from checks.spec import RunSpec


@dataclass(frozen=True)
class RunOutcome:
    """How one framework execution ended.

    `ending`: completed, failed, timed_out, out_of_memory or cancelled; `last_error`: the traceback's last line with its
    innermost frame; `capture`: None when nothing readable was recorded, and `unreadable` says why.
    """

    ending: str
    exit_code: int | None
    seconds: float
    last_error: str | None
    capture: Capture | None
    unreadable: str | None
    last_output: str = ""


@dataclass(frozen=True)
class Material:
    """Everything that was recorded and computed for one validation.

    `run`: the asked run. `merged`: the same rows as one batch without accumulation, None when no check needs it.
    `batches`: captured step → its micro-batches; `references`: captured step → reference; `no_reference`: why a step
    has none. `divergence`: the first wrong module, found by a second pass after a failure. `definition`: the model
    class against its published definition.
    """

    spec: RunSpec
    run: RunOutcome
    merged: RunOutcome | None = None
    batches: Mapping[int, tuple[MicroBatch, ...]] = field(default_factory=dict)
    references: Mapping[int, Reference] = field(default_factory=dict)
    no_reference: Mapping[int, str] = field(default_factory=dict)
    expected_scalars: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    expected_adapters: tuple[str, ...] = ()
    weight_decay_names: frozenset[str] = frozenset()
    total_steps: int = 0
    divergence: Divergence | None = None
    definition: Definition | None = None
    no_definition: str = ""

    @property
    def capture(self) -> Capture | None:
        return self.run.capture

    def why_not(self, step: int | None = None) -> str:
        """The reason why there is nothing trusted to compare with."""
        if self.run.capture is None:
            return "the run left no capture to judge; see run.completes"
        if not self.run.capture.steps:
            return "no optimizer step of the run was recorded; see run.completes"
        if step is not None and step in self.no_reference:
            return self.no_reference[step]
        return next(iter(self.no_reference.values()), "no reference was computed")

    def first_reference(self) -> Reference | None:
        """The reference of the first captured step, the one that starts from the checkpoint."""
        return self.references[min(self.references)] if self.references else None
