"""One step's inputs, computed exactly or in the forms that must not matter; their deviation is the noise floor."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from checks.captures.differences import Difference, Projection, difference
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.batch import MicroBatch
from checks.references.loss import token_losses
from checks.references.model import AUTOCAST, LOSS_SCALES, ModelSource, State, ask_gradients, build_model
from checks.references.moving import move_inputs
from checks.references.objective_of_run import Manner, forward_at, make_objective
from checks.references.objectives import Objective, score_losses
from checks.references.routing import Choices, Replay
from checks.references.selection import SelectionReplay, Selections
from checks.references.step import ForwardBatch, Layout, LogitRounding, StepResult, count_targets, run_step
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
    initial_chooses: bool = False
    """of an objective that compares with the initial model: its choices are its own, and not the run's"""

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
        ask_gradients(model, self.trainable)
        return model

    @property
    def compares(self) -> bool:
        """Whether the objective compares the model with what it began as."""
        return self.spec.objective in ("dpo", "kto")

    def build_initial(self, *, dtype: torch.dtype, attention: Attention) -> nn.Module | None:
        """The checkpoint's own weights, without adapters, where the objective compares with them."""
        if not self.compares:
            return None
        return build_model(self.source, self.spec, State({}, {}), dtype=dtype, attention=attention)

    def compute(
        self,
        model: nn.Module,
        layout: Layout = "documents",
        *,
        exact: bool = False,
        initial: nn.Module | None = None,
        rounding: LogitRounding | None = None,
    ) -> Computation:
        """Loss and gradients of the step, choices replayed; `exact` leaves out the run's autocast.

        `initial`: what `build_initial` gave; `rounding`: of the gradient by the logits.
        """
        replay = Replay(self.choices, self.micro_batches)
        keys = SelectionReplay(self.selections, self.micro_batches)

        def begin(batch: ForwardBatch) -> None:
            replay.begin(batch)
            keys.begin(batch)

        objective = self._make_objective(model, initial, layout, exact=exact)
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
            loss_scale=1.0 if exact else LOSS_SCALES.get(self.spec.precision, 1.0),
            objective=objective,
            rounding=rounding,
            forward=functools.partial(forward_at, self.spec.temperature),
            lose=score_losses if self.spec.objective == "reward" else token_losses,
        )
        replay.detach()
        keys.detach()
        scores = {**replay.scores, **keys.scores}
        if auxiliary:
            auxiliary.release()
        total = auxiliary.last_total if auxiliary else 0.0
        return Computation(result, total, scores, replay.groups, replay.weights)

    def _make_objective(
        self, model: nn.Module, initial: nn.Module | None, layout: Layout, *, exact: bool
    ) -> Objective | None:
        autocast = None if exact else AUTOCAST[self.spec.precision]
        choices, keys = ({}, {}) if self.initial_chooses else (self.choices, self.selections)
        return make_objective(Manner(self.spec, self.micro_batches, layout, autocast, choices, keys), model, initial)

    def has_auxiliary(self) -> bool:
        return AuxiliaryLoss.of(self.config, self.micro_batches) is not None


def compute_variants(inputs: StepInputs, base: StepResult, gradients: Mapping[str, Projection]) -> Iterator[Variant]:
    """Every form in the run's own precision, one at a time: only its deviations are kept."""
    models: dict[Attention, tuple[nn.Module, nn.Module | None]] = {}
    for form in inputs.forms:
        if form.layout == "merged" and inputs.has_auxiliary():
            continue  # a load-balancing loss is not additive over micro-batches
        if form.attention not in models:
            models.clear()
            own = inputs.own_dtype
            models[form.attention] = (
                inputs.build(dtype=own, attention=form.attention),
                inputs.build_initial(dtype=own, attention=form.attention),
            )
        model, initial = models[form.attention]
        # The two are moved by seeds of their own: the noise of one forward is not that of the other.
        sides = () if form.seed is None else ((model, form.seed), (initial, form.seed + len(SEEDS)))
        epsilon = EPSILON[inputs.spec.precision]
        moved = [move_inputs(side, epsilon, seed) for side, seed in sides if side is not None]
        computed = inputs.compute(model, form.layout, initial=initial)
        for handle in moved:
            handle.remove()
        yield _variant(form.name, computed, base, gradients, inputs.micro_batches)


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
