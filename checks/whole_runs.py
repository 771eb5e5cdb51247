"""References of what is other than one step: an evaluation, the loss curves of whole runs, and a run's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from checks.captures.capture import Capture
from checks.errors import BadRequest, CaptureError
from checks.material import Material
from checks.memory.implied import NoBatch, imply
from checks.memory.measured import read_measured
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.batch import MicroBatch, UnreadableBatch, read_step
from checks.references.budget import OverBudget
from checks.references.convention import NoConvention, learn_convention
from checks.references.course import UnknownRows
from checks.references.dataset import Dataset
from checks.references.evaluation import choose_rows, compute_evaluation
from checks.references.model import NoReference, State, choose_source
from checks.references.reference import root_config
from checks.references.trajectory import Trajectory, refer_run
from checks.roles import Role, spec_of
from checks.spec import RunSpec

StateOf = Callable[[RunSpec, Capture, int], State]
"""what the checkpoint cannot give of a captured step's weights"""


def add_whole_runs(material: Material, capture: Capture, *, trajectory: bool, state_of: StateOf) -> Material:
    """Add what the recorded runs are there for: an evaluation, the asked run's curve where wanted, that of one batch.

    The memory of a measured run gets what its shapes imply.

    `capture`: of the asked run, read as one process.
    """
    if Role.PROBED in material.others and material.spec.objective == "sft":
        material = _add_evaluation(material, state_of)
    if trajectory:
        found, why = _follow(material, capture, material.spec, state_of)
        material = replace(material, trajectory=found, no_trajectory=why)
    if Role.MEASURED in material.others:
        material = _add_memory(material)
    if Role.OVERFIT in material.others:
        spec = spec_of(Role.OVERFIT, material.spec)
        found, why = _follow(material, material.capture_of(Role.OVERFIT), spec, state_of)
        material = replace(material, overfit=found, no_overfit=why)
    return material


def _add_evaluation(material: Material, state_of: StateOf) -> Material:
    capture = material.capture_of(Role.PROBED)
    if capture is None or not capture.steps:
        return replace(material, no_evaluation="the run that evaluates left no capture; see run.completes")
    if material.dataset is None:
        return replace(material, no_evaluation=material.no_dataset)
    step = capture.steps[0]
    if AuxiliaryLoss.of(root_config(capture, step), ()) is not None:
        return replace(material, no_evaluation="the config adds a load-balancing term to the loss; set its weight to 0")
    recorded = [micro for step in sorted(material.batches) for micro in material.batches[step]]
    try:
        rows = choose_rows(learn_convention(material.dataset, recorded))
        source, state = choose_source(material.spec.model), state_of(material.spec, capture, step)
        found = compute_evaluation(material.spec, source, state, rows, batch=material.spec.batch)
    except (NoConvention, NoReference, OverBudget, BadRequest) as error:
        return replace(material, no_evaluation=str(error).rstrip("."))
    return replace(material, evaluation=found)


def _add_memory(material: Material) -> Material:
    capture = material.capture_of(Role.MEASURED)
    if capture is None or not capture.steps:
        return replace(material, no_implied="the run that counts its memory left no capture; see run.completes")
    try:
        device = next(iter(read_measured(capture))).device
        spec = spec_of(Role.MEASURED, material.spec)
        adapters, kept = material.expected_adapters, material.float32_names
        return replace(material, implied=imply(spec, capture, adapters=adapters, float32_names=kept, device=device))
    except StopIteration:
        return replace(material, no_implied="no process of the run was metered; see the warnings")
    except (NoBatch, OverBudget, BadRequest, CaptureError) as error:
        return replace(material, no_implied=str(error).rstrip("."))


def _follow(
    material: Material, capture: Capture | None, spec: RunSpec, state_of: StateOf
) -> tuple[Trajectory | None, str]:
    """The reference's curve for a recorded run, or why there is none."""
    if capture is None or not capture.steps:
        return None, "the run left no capture with a step in it; see run.completes"
    if material.dataset is None:
        return None, material.no_dataset
    convention = learn_convention(material.dataset, _read_all(capture, material.dataset))
    try:
        state = state_of(spec, capture, min(capture.steps))
        return refer_run(spec, capture, state, convention=convention, decaying=material.weight_decay_names), ""
    except (NoReference, UnknownRows, OverBudget, BadRequest) as error:
        return None, str(error).rstrip(".")


def _read_all(capture: Capture, dataset: Dataset) -> Iterator[MicroBatch]:
    for step in capture.steps:
        try:
            yield from read_step(capture, step, corpus=dataset.corpus)
        except UnreadableBatch:
            continue  # other steps may say as much of what counts
