"""A whole training run from its definition: loss, gradients, clipping, schedule and optimizer, step after step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from checks.probes.choices import watch_choices
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.course import Course
from checks.references.model import AUTOCAST, ModelSource, State, ask_gradients, build_model
from checks.references.optimizer import (
    AdamWSettings,
    AdamWState,
    SGDSettings,
    SGDState,
    adamw_in,
    clip_factor,
    learning_rate,
    sgd_in,
)
from checks.references.step import ForwardBatch, Layout, count_targets, forward_logits, run_step
from checks.spec import Attention, RunSpec


@dataclass(frozen=True)
class Training:
    """All that defines a run: spec, weights at its start, what is trained, which weights decay, and its batches."""

    spec: RunSpec
    source: ModelSource
    state: State
    trainable: frozenset[str]
    decaying: frozenset[str]
    config: Mapping[str, object]
    course: Course

    @property
    def own_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.spec.precision == "bf16_params" else torch.float32

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Those that the model has, the run's own first; a transformers model that asks for eager may have no other."""
        if self.spec.attention == "eager" and not self.source.plain:
            return ("eager",)
        return ("sdpa", "eager")

    def build(self, *, dtype: torch.dtype, attention: Attention) -> nn.Module:
        """The reference model at the run's start, with gradients asked for what it trains."""
        model = build_model(self.source, self.spec, self.state, dtype=dtype, attention=attention)
        ask_gradients(model, self.trainable)
        return model

    def with_rate(self, factor: float) -> Training:
        """The same run with every learning rate multiplied."""
        return replace(self, spec=replace(self.spec, lr=self.spec.lr * factor))


@dataclass(frozen=True)
class Trained:
    """`losses`: of each step, in nats, before its update; `choices`: of each step, the scores on both sides of each cut
    of its routers, forward after forward (see `checks.probes.choices`).
    """

    losses: tuple[float, ...]
    choices: tuple[tuple[torch.Tensor, ...], ...]


def train(
    training: Training, model: nn.Module, *, layout: Layout, exact: bool, gradient_factor: float = 1.0
) -> Trained:
    """Train `model` in place over the whole course.

    `exact` leaves out the run's autocast. The optimizer computes in the parameters' dtype. A loss that is no longer
    finite ends the run: the steps after it are NaN.
    """
    spec = training.spec
    states: dict[str, AdamWState | SGDState] = {}
    losses: list[float] = []
    choices: list[tuple[torch.Tensor, ...]] = []
    made: list[torch.Tensor] = []

    def forward(module: nn.Module, batch: ForwardBatch) -> torch.Tensor:
        with watch_choices(batch.input_ids.numel()) as scores:
            logits = forward_logits(module, batch)
        made.extend(scores)
        return logits

    for step, micro_batches in enumerate(training.course, start=1):
        auxiliary = AuxiliaryLoss.of(training.config, micro_batches)
        result = run_step(
            model,
            micro_batches,
            denominator=max(count_targets(micro_batches), 1),
            layout=layout,
            autocast=None if exact else AUTOCAST[spec.precision],
            forward=forward,
            auxiliary=auxiliary.hook(model) if auxiliary else None,
        )
        losses.append(result.loss)
        choices.append(tuple(cut.detach() for cut in made))
        made.clear()
        if not math.isfinite(result.loss):
            left = len(training.course) - step
            return Trained((*losses, *[math.nan] * left), (*choices, *[()] * left))
        gradients = {name: gradient * gradient_factor for name, gradient in result.gradients.items()}
        _update(training, model, gradients, states, step=step)
    return Trained(tuple(losses), tuple(choices))


def _update(
    training: Training,
    model: nn.Module,
    gradients: Mapping[str, torch.Tensor],
    states: dict[str, AdamWState | SGDState],
    *,
    step: int,
) -> None:
    spec = training.spec
    rate = learning_rate(spec.schedule, step, base_lr=spec.lr, warmup_steps=spec.warmup_steps, total_steps=spec.steps)
    norm = math.sqrt(math.fsum(float(gradient.double().square().sum()) for gradient in gradients.values()))
    factor = clip_factor(norm, spec.max_grad_norm) if spec.max_grad_norm > 0.0 else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in gradients:
                continue
            decay = spec.weight_decay if name in training.decaying else 0.0
            gradient, dtype = gradients[name] * factor, parameter.dtype
            if spec.optimizer == "adamw":
                moments = states.get(name, AdamWState.zeros(parameter))
                assert isinstance(moments, AdamWState)
                settings = AdamWSettings(rate, spec.beta1, spec.beta2, spec.eps, decay)
                new, states[name] = adamw_in(parameter, gradient, moments, settings, dtype=dtype, order="foreach")
            else:
                buffer = states.get(name, SGDState())
                assert isinstance(buffer, SGDState)
                plain = SGDSettings(rate, spec.momentum, weight_decay=decay)
                new, states[name] = sgd_in(parameter, gradient, buffer, plain, dtype=dtype)
            parameter.copy_(new)
