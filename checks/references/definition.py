"""The framework's model class against the plain definition, both in float64, on the captured batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from checks.references.model import ModelSource, State, ask_gradients, build_model, float64_mode
from checks.references.reference import Reference
from checks.references.step import run_step
from checks.spec import RunSpec


@dataclass(frozen=True)
class Definition:
    """`errors`: "loss" and every parameter → relative difference between the class and the plain reference."""

    class_name: str
    errors: Mapping[str, float]
    lifted_casts: tuple[str, ...]


@dataclass(frozen=True)
class Computed:
    """One model's loss and gradients over the step, in float64."""

    class_name: str
    loss: float
    gradients: Mapping[str, torch.Tensor]
    lifted_casts: tuple[str, ...]


def compare_definition(spec: RunSpec, reference: Reference, state: State) -> Definition:
    """Run transformers' class of the checkpoint in float64 beside a plain reference.

    The reference that was already computed serves where it is the plain model's own. Where it replayed the run's
    expert choices or added an auxiliary term, the plain model is run again: each side chooses its experts by itself,
    so that a wrong choice of the class shows too. So it is where the run's objective is another than the mean over
    tokens, which both sides compute whatever the run minimises.
    """
    source = reference.source
    theirs = compute_alone(replace(source, plain=False), spec, reference, state)
    if reference.choices or reference.auxiliary or spec.objective != "sft":
        plain = compute_alone(source, spec, reference, state)
        loss, gradients = plain.loss, plain.gradients
    else:
        loss = reference.loss
        gradients = {name: held.full for name, held in reference.gradients.items() if held.full is not None}
    errors = {"loss": abs(theirs.loss - loss) / max(abs(loss), 1e-300)}
    for name, gradient in gradients.items():
        found = theirs.gradients.get(name)
        size = float(gradient.norm()) or 1.0
        errors[name] = float("inf") if found is None else float((found - gradient).norm()) / size
    return Definition(f"transformers' {theirs.class_name}", errors, theirs.lifted_casts)


def compute_alone(source: ModelSource, spec: RunSpec, reference: Reference, state: State) -> Computed:
    """Loss and gradients of one model over the reference's batch: its own choices of experts, no auxiliary term."""
    model = build_model(source, spec, state, dtype=torch.float64, attention="eager")
    ask_gradients(model, reference.gradients.keys())
    with float64_mode(source) as lifted:
        result = run_step(model, reference.micro_batches, denominator=reference.denominator)
    return Computed(type(model).__name__, result.loss, result.gradients, tuple(lifted))
