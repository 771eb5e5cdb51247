"""The framework's model class against the plain definition, both in float64, on the captured batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from checks.references.hf import lift_casts
from checks.references.model import State, build_model
from checks.references.reference import Reference
from checks.references.step import run_step
from checks.spec import RunSpec


@dataclass(frozen=True)
class Definition:
    """`errors`: "loss" and every parameter → relative difference between the class and the plain reference."""

    class_name: str
    errors: Mapping[str, float]
    lifted_casts: tuple[str, ...]


def compare_definition(spec: RunSpec, reference: Reference, state: State) -> Definition:
    """Run transformers' class of the checkpoint in float64 beside a plain reference that was already computed."""
    source = replace(reference.source, plain=False)
    model = build_model(source, spec, state, dtype=torch.float64, attention="eager")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in reference.gradients)
    with lift_casts() as lifted:
        result = run_step(model, reference.micro_batches, denominator=reference.denominator)
    errors = {"loss": abs(result.loss - reference.loss) / max(abs(reference.loss), 1e-300)}
    for name, projection in reference.gradients.items():
        assert projection.full is not None
        ours = result.gradients.get(name)
        size = projection.norm or 1.0
        errors[name] = float("inf") if ours is None else float((ours - projection.full).norm()) / size
    return Definition(f"transformers' {type(model).__name__}", errors, tuple(lifted.places))
