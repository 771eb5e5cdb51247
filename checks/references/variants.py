"""One step's inputs, computed exactly or in the forms that must not matter; their deviation is the noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from checks.captures.differences import Difference, Projection, difference
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.batch import MicroBatch
from checks.references.model import AUTOCAST, ModelSource, State, build_model
from checks.references.routing import Choices, Replay
from checks.references.selection import SelectionReplay, Selections
from checks.references.step import ForwardBatch, Layout, StepResult, count_targets, run_step
from checks.spec import Attention, RunSpec
from checks.tolerance import EPSILON

LAYOUTS: tuple[Layout, ...] = ("documents", "right", "left", "merged")
SEEDS = (1, 2)
"""Of the two forms whose inputs are moved by ε."""


@dataclass(frozen=True)
class Form:
    """One way to compute the step; `seed`: the inputs are moved by ε, by this seed."""

    attention: Attention
    layout: Layout
    seed: int | None = None

    @property
    def name(self) -> str:
        moved = "" if self.seed is None else f", inputs moved by ε (seed {self.seed})"
        return f"{self.attention}, {self.layout}{moved}"


@dataclass(frozen=True)
class Variant:
    """The step in the run's own precision in one form.

    `differences`: gradient name → against the float64 reference; `token_errors`: (counted tokens,) float64, nats;
    `scores`: router → micro-batch → (B, S, E), what its experts were chosen by; indexer → … (B, S, S), its keys.
    `weights`: router → micro-batch → (B, S, k), what it gave to the chosen experts.
    """

    name: str
    loss: float
    token_errors: torch.Tensor
    differences: Mapping[str, Difference]
    scores: Mapping[str, Sequence[torch.Tensor]]
    weights: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Computation:
    """A step's result with the auxiliary term in it, the routers' scores and weights; `groups`: scores before their
    limit.
    """

    result: StepResult
    auxiliary: float
    scores: Mapping[str, Sequence[torch.Tensor]]
    groups: Mapping[str, Sequence[torch.Tensor]]
    weights: Mapping[str, Sequence[torch.Tensor]]


@dataclass(frozen=True)
class StepInputs:
    """All that defines a step: spec, weights, batch, what is trained, the config in force, and what was chosen."""

    spec: RunSpec
    source: ModelSource
    state: State
    micro_batches: tuple[MicroBatch, ...]
    trainable: frozenset[str]
    config: Mapping[str, object]
    choices: Choices
    selections: Selections = field(default_factory=dict)

    @property
    def denominator(self) -> int:
        return count_targets(self.micro_batches)

    @property
    def own_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.spec.precision == "bf16_params" else torch.float32

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The run's own attention first; a transformers model that asks for eager may have no other."""
        if self.spec.attention == "eager" and not self.source.plain:
            return ("eager",)
        return ("sdpa", "eager")

    @property
    def forms(self) -> tuple[Form, ...]:
        first, *others = self.attentions
        found = [Form(first, layout) for layout in LAYOUTS] + [Form(other, "right") for other in others]
        return (*found, *(Form(attention, "right", seed) for attention in self.attentions for seed in SEEDS))

    def build(self, *, dtype: torch.dtype, attention: Attention) -> nn.Module:
        """The reference model with gradients asked for what the run trains, and of nothing else."""
        model = build_model(self.source, self.spec, self.state, dtype=dtype, attention=attention)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.trainable)
        return model

    def compute(self, model: nn.Module, layout: Layout = "documents", *, exact: bool = False) -> Computation:
        """Loss and gradients of the step, choices replayed; `exact` leaves out the run's autocast."""
        replay = Replay(self.choices, self.micro_batches)
        keys = SelectionReplay(self.selections, self.micro_batches)

        def begin(batch: ForwardBatch) -> None:
            replay.begin(batch)
            keys.begin(batch)

        replay.attach(model)
        keys.attach(model)
        auxiliary = AuxiliaryLoss.of(self.config, self.micro_batches)
        result = run_step(
            model,
            self.micro_batches,
            denominator=self.denominator,
            layout=layout,
            autocast=None if exact else AUTOCAST[self.spec.precision],
            auxiliary=auxiliary.hook(model) if auxiliary else None,
            before_forward=begin,
        )
        replay.detach()
        keys.detach()
        scores = {**replay.scores, **keys.scores}
        if auxiliary:
            auxiliary.release()
        total = auxiliary.last_total if auxiliary else 0.0
        return Computation(result, total, scores, replay.groups, replay.weights)

    def has_auxiliary(self) -> bool:
        return AuxiliaryLoss.of(self.config, self.micro_batches) is not None


def compute_variants(inputs: StepInputs, base: StepResult, gradients: Mapping[str, Projection]) -> Iterator[Variant]:
    """Every form in the run's own precision, one at a time: only its deviations are kept."""
    models: dict[Attention, nn.Module] = {}
    for form in inputs.forms:
        if form.layout == "merged" and inputs.has_auxiliary():
            continue  # a load-balancing loss is not additive over micro-batches
        if form.attention not in models:
            models.clear()
            models[form.attention] = inputs.build(dtype=inputs.own_dtype, attention=form.attention)
        model = models[form.attention]
        moved = None if form.seed is None else move_inputs(model, EPSILON[inputs.spec.precision], form.seed)
        computed = inputs.compute(model, form.layout)
        if moved is not None:
            moved.remove()
        yield _variant(form.name, computed, base, gradients, inputs.micro_batches)


def move_inputs(model: nn.Module, epsilon: float, seed: int) -> torch.utils.hooks.RemovableHandle:
    """Multiply the embeddings' output by 1 ± 2ε: an input that no method can tell from the given one."""
    generator = torch.Generator().manual_seed(seed)

    def move(_module: nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        sign = torch.randint(0, 2, output.shape, generator=generator).to(output.dtype) * 2 - 1
        return output * (1 + epsilon * 2 * sign)

    return model.get_submodule("model.embed_tokens").register_forward_hook(move)


def _variant(
    name: str,
    computed: Computation,
    base: StepResult,
    gradients: Mapping[str, Projection],
    micro_batches: Sequence[MicroBatch],
) -> Variant:
    result = computed.result
    errors = [
        (ours - theirs).abs()[micro.counted]
        for ours, theirs, micro in zip(result.token_losses, base.token_losses, micro_batches, strict=True)
    ]
    differences = {
        key: difference(result.gradients[key], projection)
        for key, projection in gradients.items()
        if key in result.gradients
    }
    return Variant(name, result.loss, torch.cat(errors), differences, computed.scores, computed.weights)
