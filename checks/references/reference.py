"""The trusted counterpart of one captured step: loss, per-token losses and gradients in float64, with their noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from checks.captures.blocks import blocks_of
from checks.captures.capture import Capture
from checks.captures.differences import Difference, Projection, difference, project
from checks.references.auxiliary import AuxiliaryLoss
from checks.references.batch import MicroBatch
from checks.references.budget import check_memory
from checks.references.model import AUTOCAST, ModelSource, State, build_model, float64_mode
from checks.references.step import Layout, StepResult, count_targets, run_step
from checks.spec import Attention, RunSpec
from checks.tolerance import EPSILON, Floor, measure_floor


class NoReference(ValueError):
    """There is nothing trusted to compare with; `str()` says why. The verdict is inconclusive."""


@dataclass(frozen=True)
class Variant:
    """The same step in the run's own precision, in one form that must not matter.

    `differences`: gradient name → against the float64 reference; `token_errors`: (counted tokens,) float64.
    """

    name: str
    loss: float
    token_errors: torch.Tensor
    differences: Mapping[str, Difference]


@dataclass(frozen=True)
class Reference:
    """`gradients`: name → float64 projection; `weights`: name → projection of the weights it started from."""

    source: ModelSource
    step: int
    micro_batches: tuple[MicroBatch, ...]
    denominator: int
    loss: float
    auxiliary: float
    token_losses: tuple[torch.Tensor, ...]
    gradients: Mapping[str, Projection]
    weights: Mapping[str, Projection]
    variants: tuple[Variant, ...]
    lifted_casts: tuple[str, ...]
    notes: tuple[str, ...]
    epsilon: float

    @property
    def mean_square(self) -> float:
        """Mean square of a gradient element over all parameters."""
        count = sum(g.full.numel() for g in self.gradients.values() if g.full is not None)
        return math.fsum(g.norm**2 for g in self.gradients.values()) / max(count, 1)

    def floor(self, name: str) -> Floor:
        """The noise floor of one parameter's gradient."""
        variants = [v.differences[name] for v in self.variants if name in v.differences]
        return measure_floor(self.gradients[name], variants, epsilon=self.epsilon, mean_square=self.mean_square)

    @property
    def token_floor(self) -> float:
        """The largest per-token deviation of any variant, in nats, with the round-off of the largest loss."""
        largest = max((float(losses.abs().max()) for losses in self.token_losses), default=0.0)
        worst = max((float(v.token_errors.max()) for v in self.variants if v.token_errors.numel()), default=0.0)
        return worst + self.epsilon * max(largest, 1.0)

    @property
    def loss_floor(self) -> float:
        return max((abs(v.loss - self.loss) for v in self.variants), default=0.0) + self.epsilon * max(
            abs(self.loss), 1.0
        )


def compute_reference(
    spec: RunSpec,
    capture: Capture,
    micro_batches: Sequence[MicroBatch],
    *,
    source: ModelSource,
    state: State,
    step: int,
    notes: Sequence[str] = (),
) -> Reference:
    """Compute the step in float64 and, in every legitimate form, in the run's own precision.

    Raises:
        NoReference: dropout is on, nothing is counted, or the memory budget does not hold it.
    """
    refuse_dropout(capture, step)
    denominator = count_targets(micro_batches)
    if denominator == 0:
        raise NoReference("the batch counts no token, so there is no loss to define")
    check_memory(source.checkpoint)
    base_model = build_model(source, spec, state, dtype=torch.float64, attention="eager")
    train_only(base_model, capture.step(step).trainable)
    config = root_config(capture, step)
    auxiliary = AuxiliaryLoss.of(config, micro_batches)
    weights = {
        name: project(name, parameter, blocks_of(name, tuple(parameter.shape), config=config))
        for name, parameter in base_model.named_parameters()
    }
    with float64_mode(source) as lifted:
        base = run_step(
            base_model,
            micro_batches,
            denominator=denominator,
            auxiliary=auxiliary.hook(base_model) if auxiliary else None,
        )
    gradients = {
        name: project(name, gradient, blocks_of(name, tuple(gradient.shape), config=config))
        for name, gradient in base.gradients.items()
    }
    variants = tuple(_variants(spec, capture, micro_batches, source, state, step, base, gradients, denominator))
    return Reference(
        source=source,
        step=step,
        micro_batches=tuple(micro_batches),
        denominator=denominator,
        loss=base.loss,
        auxiliary=auxiliary.last_total if auxiliary else 0.0,
        token_losses=base.token_losses,
        gradients=gradients,
        weights=weights,
        variants=variants,
        lifted_casts=tuple(lifted),
        notes=tuple(notes),
        epsilon=EPSILON[spec.precision],
    )


def root_config(capture: Capture, step: int) -> Mapping[str, object]:
    """The model's config in force, flattened, as the recorder saw it at the root module."""
    config = capture.step(step).scalars.get("", {}).get("config")
    return config if isinstance(config, Mapping) else {}


def refuse_dropout(capture: Capture, step: int) -> None:
    """A step with dropout on cannot be computed again: its masks are not recorded."""
    for path, scalars in capture.step(step).scalars.items():
        for attribute in ("p", "attention_dropout", "hidden_dropout"):
            value = scalars.get(attribute)
            if path and isinstance(value, float) and value > 0.0:
                raise NoReference(
                    f"dropout is on ({path}.{attribute} = {value}); set it to 0 to make the step comparable"
                )


def train_only(model: nn.Module, trainable: Sequence[str]) -> None:
    """Ask for gradients of the parameters that the run trains, and of no others."""
    wanted = set(trainable)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in wanted)


def _variants(
    spec: RunSpec,
    capture: Capture,
    micro_batches: Sequence[MicroBatch],
    source: ModelSource,
    state: State,
    step: int,
    base: StepResult,
    gradients: Mapping[str, Projection],
    denominator: int,
) -> list[Variant]:
    found: list[Variant] = []
    dtype = torch.bfloat16 if spec.precision == "bf16_params" else torch.float32
    attentions: tuple[Attention, ...] = (
        ("eager",) if spec.attention == "eager" and not source.plain else ("sdpa", "eager")
    )
    for attention in attentions:
        model = build_model(source, spec, state, dtype=dtype, attention=attention)
        train_only(model, capture.step(step).trainable)
        auxiliary = AuxiliaryLoss.of(root_config(capture, step), micro_batches)
        layouts: tuple[Layout, ...] = (
            ("documents", "right", "left", "merged") if attention == attentions[0] else ("right",)
        )
        forms: list[tuple[str, Layout, int | None]] = [(layout, layout, None) for layout in layouts]
        forms += [(f"inputs moved by ε, seed {seed}", "right", seed) for seed in (1, 2)]
        for label, layout, seed in forms:
            hook = None if seed is None else move_inputs(model, EPSILON[spec.precision], seed)
            result = run_step(
                model,
                micro_batches,
                denominator=denominator,
                layout=layout,
                autocast=AUTOCAST[spec.precision],
                auxiliary=auxiliary.hook(model) if auxiliary and layout != "merged" else None,
            )
            if hook is not None:
                hook.remove()
            if auxiliary and layout == "merged":
                continue
            found.append(_variant(f"{attention}, {label}", result, base, gradients, micro_batches))
    return found


def move_inputs(model: nn.Module, epsilon: float, seed: int) -> torch.utils.hooks.RemovableHandle:
    """Multiply the embeddings' output by 1 ± ε: an input that no method can tell from the given one."""
    generator = torch.Generator().manual_seed(seed)

    def move(_module: nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        sign = torch.randint(0, 2, output.shape, generator=generator).to(output.dtype) * 2 - 1
        return output * (1 + epsilon * 2 * sign)

    return model.get_submodule("model.embed_tokens").register_forward_hook(move)


def _variant(
    name: str,
    result: StepResult,
    base: StepResult,
    gradients: Mapping[str, Projection],
    micro_batches: Sequence[MicroBatch],
) -> Variant:
    errors = [
        (ours - theirs).abs()[micro.counted]
        for ours, theirs, micro in zip(result.token_losses, base.token_losses, micro_batches, strict=True)
    ]
    differences = {
        key: difference(result.gradients[key], projection)
        for key, projection in gradients.items()
        if key in result.gradients
    }
    return Variant(name, result.loss, torch.cat(errors), differences)
