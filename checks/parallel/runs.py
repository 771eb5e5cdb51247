"""The run of several processes and that of one, each joined into its steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from checks.captures.capture import Capture
from checks.captures.row_prints import Print, read_forwards
from checks.material import Material
from checks.parallel.joining import JoinedStep, join_ranks
from checks.parallel.tensors import NotJoined
from checks.roles import Role


@dataclass(frozen=True)
class Runs:
    """`divided`: the asked run's step, by all its ranks; `single`: the same step by one process."""

    divided: JoinedStep
    single: JoinedStep

    @property
    def same_rows(self) -> bool:
        """Whether both trained on the same rows, in whatever order."""
        return _count_rows(self.divided) == _count_rows(self.single)


def find_steps(material: Material) -> tuple[int, ...]:
    """The steps that any rank of the asked run recorded.

    Raises:
        NotJoined: it left no capture, or none of a step.
    """
    capture = material.capture
    if capture is None:
        raise NotJoined(
            f"the run left no readable capture: {(material.run.unreadable or 'see run.completes').rstrip('.')}"
        )
    steps = sorted({step for records in capture.records.values() for step in records})
    if not steps:
        raise NotJoined("no optimizer step of the run was recorded; see run.completes")
    return tuple(steps)


def join_asked(material: Material, step: int) -> JoinedStep:
    """The asked run's step, by all its ranks.

    Raises:
        NotJoined: the ranks' records are not one step of one run.
    """
    find_steps(material)
    assert material.capture is not None
    return join_ranks(material.capture, step, processes=material.spec.processes, dp_size=material.spec.dp_size)


def join_runs(material: Material, step: int) -> Runs:
    """The same step of both runs.

    Raises:
        NotJoined: one of them left nothing to join.
    """
    divided = join_asked(material, step)
    single = single_capture(material)
    if step not in single.steps:
        raise NotJoined(f"the run of one process did not record step {step}")
    return Runs(divided, join_ranks(single, step, processes=1, dp_size=1))


def single_capture(material: Material) -> Capture:
    """What the run of one process recorded.

    Raises:
        NotJoined: nothing readable.
    """
    outcome = material.others.get(Role.SINGLE)
    if outcome is None or outcome.capture is None or not outcome.capture.steps:
        said = "" if outcome is None else f" ({outcome.last_error or outcome.unreadable or outcome.ending})"
        raise NotJoined(f"the run of one process left no step to compare with{said}")
    return outcome.capture


def _count_rows(step: JoinedStep) -> Counter[Print]:
    ranks = {batch.rank for batch in step.batches}
    forwards = read_forwards(step.capture)
    return Counter(
        row for forward in forwards if forward.step == step.step and forward.rank in ranks for row in forward.rows
    )
