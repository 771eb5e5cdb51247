"""From captures to what the judges read: batches, references, expected settings, and the first wrong module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from torch import nn

from checks.answering import add_answers
from checks.captures.capture import Capture
from checks.diagnosis.repetition import began_alike
from checks.errors import BadRequest
from checks.locating import compare_modules
from checks.material import Material, RunOutcome
from checks.models.checkpoint import read_config
from checks.parallel.scope import is_united
from checks.probes.answers import read_answers
from checks.references.batch import MicroBatch, UnreadableBatch, read_step
from checks.references.budget import OverBudget
from checks.references.captured_state import captured_state
from checks.references.dataset import Dataset, read_dataset
from checks.references.definition import compare_definition
from checks.references.float32_names import read_float32_names
from checks.references.model import (
    PARAMETER_DTYPES,
    SCORE,
    ModelSource,
    NoReference,
    State,
    choose_source,
)
from checks.references.optimizer import decays
from checks.references.reference import Reference, compute_reference
from checks.references.router_biases import read_router_biases
from checks.references.scalars import build_empty, expected_scalars
from checks.roles import Role
from checks.spec import RunSpec
from checks.whole_runs import add_whole_runs


class Refer(Protocol):
    """Gives the reference of one captured step: `compute_reference`, or a store that computes only what it lacks."""

    def __call__(
        self,
        spec: RunSpec,
        capture: Capture,
        micro_batches: Sequence[MicroBatch],
        *,
        source: ModelSource,
        state: State,
        step: int,
        notes: Sequence[str] = (),
    ) -> Reference: ...


def assemble(
    spec: RunSpec,
    outcomes: Mapping[Role, RunOutcome],
    *,
    references: bool,
    definition: bool,
    trajectory: bool = False,
    refer: Refer = compute_reference,
) -> Material:
    """Read the captures of one validation and get every reference that its checks need from `refer`.

    `outcomes`: the asked run, and those beside it that its checks need. `trajectory`: train the reference over all
    steps of the asked run too.
    """
    run = outcomes[Role.RUN]
    model = build_empty(spec.model)
    adapters = _expected_adapters(model, spec) if spec.lora else ()
    material = Material(
        spec=spec,
        run=run,
        others={role: outcome for role, outcome in outcomes.items() if role is not Role.RUN},
        expected_scalars=expected_scalars(spec.model),
        expected_adapters=adapters,
        asked_config=read_config(spec.model),
        weight_decay_names=_decaying(model) | frozenset(adapters) | ({SCORE} if spec.objective == "reward" else set()),
        router_biases=read_router_biases(spec.model, model),
        float32_names=read_float32_names(spec.model, PARAMETER_DTYPES[spec.precision]),
        total_steps=spec.steps,
    )
    capture = run.capture
    if capture is None or not capture.steps:
        return material
    material = _add_dataset(material, capture)
    if spec.processes > 1:
        # One rank's rows are not the step's: what the ranks did together is what one process did with all rows, or
        # what they recorded, put together, also where no such process was run beside them.
        alone = references and Role.SINGLE not in outcomes
        whole = material.whole if is_united(spec) or alone else material.capture_of(Role.SINGLE)
        if whole is None or not whole.steps:
            return material
        capture = whole
    batches, unreadable = _read_batches(material.dataset, capture)
    material = replace(material, batches=batches, no_reference=unreadable)
    if references:
        material = _add_references(material, capture, refer)
    if references and spec.objective not in ("sft", "orpo", "reward"):
        material = add_answers(material, capture)
    if Role.PROBED in outcomes:
        material = _add_probes(material)
    if Role.TRACED in outcomes:
        material = _add_activations(material, capture)
    material = add_whole_runs(material, capture, trajectory=trajectory, state_of=captured_state)
    return _add_definition(material, capture) if definition else material


def _add_activations(material: Material, capture: Capture) -> Material:
    traced, reference = material.capture_of(Role.TRACED), material.first_reference()
    if traced is None or not traced.steps:
        reason = "the run that records its modules left no capture; see run.completes"
    elif reference is None:
        reason = material.why_not()
    elif not began_alike(capture, traced, reference.step):
        reason = "the run that records its modules began from other rows, weights or random states than the asked one"
    else:
        return replace(material, activations=compare_modules(material.spec, capture, reference, traced))
    return replace(material, no_activations=reason)


def _add_dataset(material: Material, capture: Capture) -> Material:
    stated = capture.manifest.get("started")
    # Templates that print the date print that of the run.
    started = datetime.fromisoformat(stated).astimezone() if isinstance(stated, str) else None
    try:
        return replace(material, dataset=read_dataset(material.spec, now=started))
    except BadRequest as error:
        return replace(material, no_dataset=f"the samples cannot be rendered: {str(error).rstrip('.')}")


def _read_batches(
    dataset: Dataset | None, capture: Capture
) -> tuple[dict[int, tuple[MicroBatch, ...]], dict[int, str]]:
    corpus = None if dataset is None else dataset.corpus
    batches, unreadable = {}, {}
    for step in capture.steps:
        try:
            batches[step] = read_step(capture, step, corpus=corpus)
        except UnreadableBatch as error:
            unreadable[step] = str(error)
    return batches, unreadable


def _add_references(material: Material, capture: Capture, refer: Refer) -> Material:
    source = choose_source(material.spec.model)
    references: dict[int, Reference] = {}
    reasons = dict(material.no_reference)
    for step, micro_batches in material.batches.items():
        notes = [f"no plain reference: {source.why}"] if source.why else []
        if material.spec.lora:
            notes.append("adapter weights come from the capture: no checkpoint holds them")
        if material.spec.objective == "reward":
            notes.append("the head's weights come from the capture: no checkpoint holds them")
        if step > 1:
            notes.append("this step starts from captured weights")
        if material.spec.objective in ("dpo", "kto"):
            notes.append("the answers are compared with what the checkpoint's own weights say of them")
        if material.float32_names:
            kept = ", ".join(sorted(material.float32_names)[:3])
            notes.append(f"kept in float32, as the model's class declares ({len(material.float32_names)}): {kept}")
        try:
            state = captured_state(material.spec, capture, step)
            references[step] = refer(
                material.spec, capture, micro_batches, source=source, state=state, step=step, notes=notes
            )
        except (NoReference, OverBudget, BadRequest) as error:
            reasons[step] = str(error)
    return replace(material, references=references, no_reference=reasons)


def _add_definition(material: Material, capture: Capture) -> Material:
    reference = material.first_reference()
    if reference is None:
        return replace(material, no_definition=material.why_not())
    if not reference.source.plain:
        reason = f"there is no independent reference for this family ({reference.source.why})"
        return replace(material, no_definition=reason)
    state = captured_state(material.spec, capture, reference.step)
    return replace(material, definition=compare_definition(material.spec, reference, state))


def _add_probes(material: Material) -> Material:
    capture = material.capture_of(Role.PROBED)
    if capture is None or not capture.steps:
        return replace(material, no_probes="the run that asks the model left no capture; see run.completes")
    lost = [note.why for note in capture.missing if note.what == "probes"]
    if lost:
        return replace(material, no_probes=lost[0])
    try:
        source = choose_source(material.spec.model)
        state = captured_state(material.spec, capture, capture.steps[0])
        answers = read_answers(material.spec, capture, source, state)
    except (NoReference, OverBudget, BadRequest) as error:
        return replace(material, no_probes=str(error))
    return replace(
        material,
        probes=answers,
        no_probes="" if answers else "the model answered no probe; see the warnings",
        probes_shared=source.shared,
    )


def _expected_adapters(model: nn.Module, spec: RunSpec) -> tuple[str, ...]:
    """Canonical names of the adapters that the run spec asks for: both factors of every target module."""
    targets = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and path.rsplit(".", 1)[-1] in spec.lora_targets
    ]
    return tuple(f"{path}.{factor}.weight" for path in targets for factor in ("lora_A", "lora_B"))


def _decaying(model: nn.Module) -> frozenset[str]:
    found = set()
    for path, module in model.named_modules():
        for field, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{field}" if path else field
            if decays(name, tuple(parameter.shape), type(module).__name__):
                found.add(name)
    return frozenset(found)
