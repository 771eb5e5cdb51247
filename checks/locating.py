"""The reference's modules on the run's own inputs: the first wrong one, and how far each is off."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from checks.captures.capture import Capture
from checks.diagnosis.explained import explain_module
from checks.diagnosis.first_divergence import Divergence, find_first_divergence
from checks.diagnosis.repetition import measure_repetition, same_gradients
from checks.material import Material
from checks.references.captured_state import captured_state
from checks.references.model import AUTOCAST, State, build_model, float64_mode
from checks.references.reference import Reference
from checks.spec import Attention, RunSpec
from checks.tolerance import EPSILON, MULTIPLES


def locate(material: Material, second_pass: Capture) -> Material:
    """Find the first wrong module with the second pass's full inputs and outputs, and say whether it repeated the
    first.
    """
    reference, capture = material.first_reference(), material.capture
    if reference is None or capture is None:
        return material
    divergence = compare_modules(material.spec, capture, reference, second_pass)
    return replace(material, divergence=divergence)


def compare_modules(spec: RunSpec, capture: Capture, reference: Reference, second_pass: Capture) -> Divergence:
    """Compare every module of the captured step's reference with what a run that recorded its modules saw of it."""
    step = reference.step
    state = captured_state(spec, capture, step)
    divergence = find_first_divergence(
        build_model(reference.source, spec, state, dtype=torch.float64, attention="eager"),
        [_own_precision(reference, spec, state, attention) for attention in _attentions(reference, spec)],
        second_pass,
        reference.micro_batches,
        step=step,
        multiple=MULTIPLES[spec.precision],
        epsilon=EPSILON[spec.precision],
        deterministic=same_gradients(capture, second_pass, step),
        exact_mode=float64_mode(reference.source),
        autocast=AUTOCAST[spec.precision],
    )
    divergence = replace(
        divergence, unsteady=measure_repetition(capture, second_pass, reference, MULTIPLES[spec.precision])
    )
    if divergence.first is None:
        return divergence
    rounding = explain_module(
        _own_precision(reference, spec, state, "eager"),
        divergence.first.module,
        second_pass,
        reference.micro_batches,
        step=step,
        autocast=AUTOCAST[spec.precision],
    )
    return replace(divergence, rounding=rounding)


def _attentions(reference: Reference, spec: RunSpec) -> tuple[Attention, ...]:
    return ("eager",) if spec.attention == "eager" and not reference.source.plain else ("sdpa", "eager")


def _own_precision(reference: Reference, spec: RunSpec, state: State, attention: Attention) -> nn.Module:
    dtype = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    return build_model(reference.source, spec, state, dtype=dtype, attention=attention)
