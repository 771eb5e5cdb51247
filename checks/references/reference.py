"""The trusted counterpart of one captured step: loss, per-token losses and gradients in float64, with their noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from checks.captures.blocks import blocks_of
from checks.captures.capture import Capture
from checks.captures.differences import Projection, project
from checks.references.auxiliary import is_router
from checks.references.batch import MicroBatch
from checks.references.budget import check_memory
from checks.references.initial import (
    CannotCompare,
    check_answers,
    check_pairs,
    chooses_alone,
    compute_initial_answers,
)
from checks.references.mismatched import read_mismatched
from checks.references.model import ModelSource, NoReference, State, float64_mode
from checks.references.router_weights import WeightError, judge_weights, read_weights
from checks.references.routing import ChoiceError, Choices, judge_choices, read_choices
from checks.references.sampled import NoSamples, count_near_clip, penalty_of, read_samples_of
from checks.references.selection import Selections, judge_selections, read_selections
from checks.references.step import LogitRounding
from checks.references.variants import StepInputs, Variant, compute_variants
from checks.spec import POLICY_OBJECTIVES, RunSpec
from checks.tolerance import EPSILON, Floor, measure_floor


@dataclass(frozen=True)
class Reference:
    """`gradients`: name → float64 projection; `weights`: name → projection of the weights it started from.

    `router_weights`: what the routers give to the experts chosen, judged; `auxiliary_gradients`: of the routers'
    parameters, the part of `gradients` that is the auxiliary term's, empty where there is none.
    """

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
    choices: tuple[ChoiceError, ...]
    lifted_casts: tuple[str, ...]
    notes: tuple[str, ...]
    epsilon: float
    router_weights: tuple[WeightError, ...] = ()
    auxiliary_gradients: Mapping[str, Projection] = field(default_factory=dict)
    rounded_gradients: Mapping[str, Projection] = field(default_factory=dict)
    """sketches of what the gradients would be if the one by the logits were rounded to bfloat16; empty where the
    framework has no loss that does so"""

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
        NoReference: dropout is on, nothing is counted, rows are no pairs, or the memory budget does not hold it.
    """
    refuse_dropout(capture, step)
    choices, keys = read_choices(capture, step, micro_batches), read_selections(capture, step, micro_batches)
    if spec.objective != "sft":
        _refuse_what_cannot_be_compared(spec, source, micro_batches, choices=choices, keys=keys, step=step)
    inputs = StepInputs(
        spec=spec,
        source=source,
        state=state,
        micro_batches=tuple(micro_batches),
        trainable=frozenset(capture.step(step).trainable),
        config=root_config(capture, step),
        choices=choices,
        selections=keys,
        initial_chooses=chooses_alone(spec, choices=choices, keys=keys, step=step),
    )
    if inputs.denominator == 0:
        raise NoReference("the batch counts no token, so there is no loss to define")
    check_memory(source.checkpoint, objective=spec.objective)
    model = inputs.build(dtype=torch.float64, attention="eager")
    initial = inputs.build_initial(dtype=torch.float64, attention="eager")
    weights = _project_all(dict(model.named_parameters()), inputs.config)
    with float64_mode(source) as lifted:
        exact = inputs.compute(model, exact=True, initial=initial)
    gradients = _project_all(exact.result.gradients, inputs.config)
    auxiliary_gradients = _auxiliary_gradients(inputs, model, exact.result.gradients, initial=initial)
    rounded = _compute_rounded(inputs, model, rounding_of(spec, capture, step), initial=initial)
    variants = tuple(compute_variants(inputs, exact.result, gradients))
    noisy = [variant.scores for variant in variants]
    return Reference(
        source=source,
        step=step,
        micro_batches=inputs.micro_batches,
        denominator=inputs.denominator,
        loss=exact.result.loss,
        auxiliary=exact.auxiliary,
        token_losses=exact.result.token_losses,
        gradients=gradients,
        weights=weights,
        variants=variants,
        choices=(
            *judge_choices(inputs.choices, exact.scores, noisy, groups=exact.groups),
            *judge_selections(inputs.selections, exact.scores, noisy),
        ),
        lifted_casts=tuple(lifted),
        notes=tuple(notes),
        epsilon=EPSILON[spec.precision],
        router_weights=judge_weights(
            read_weights(capture, step, micro_batches), exact.weights, [variant.weights for variant in variants]
        ),
        auxiliary_gradients=auxiliary_gradients,
        rounded_gradients=rounded,
    )


def rounding_of(spec: RunSpec, capture: Capture, step: int) -> LogitRounding | None:
    """How the run's framework may round the loss's gradient by the logits, further than the run's precision does.

    Megatron-core's fused cross-entropy gives it in bfloat16 whatever the logits are
    (https://github.com/NVIDIA/Megatron-LM/blob/core_v0.16.1/megatron/core/fusions/fused_cross_entropy.py); what the
    framework divides the gradients by after the backward, that gradient has more of.
    """
    if spec.precision != "float32" or "megatron-core" not in capture.packages:
        return None
    records = capture.micro_batches(step)
    return LogitRounding(torch.bfloat16, (records[0].divided_by if records else None) or 1.0)


def _compute_rounded(
    inputs: StepInputs, model: nn.Module, rounding: LogitRounding | None, *, initial: nn.Module | None
) -> dict[str, Projection]:
    if rounding is None:
        return {}
    with float64_mode(inputs.source):
        gradients = inputs.compute(model, exact=True, initial=initial, rounding=rounding).result.gradients
    return {name: replace(each, full=None) for name, each in _project_all(gradients, inputs.config).items()}


def _refuse_what_cannot_be_compared(
    spec: RunSpec,
    source: ModelSource,
    micro_batches: Sequence[MicroBatch],
    *,
    choices: Choices,
    keys: Selections,
    step: int,
) -> None:
    try:
        (check_pairs if spec.objective in ("dpo", "orpo", "reward") else check_answers)(micro_batches, step=step)
        if spec.objective == "kto":
            read_mismatched(micro_batches)
        if spec.objective in POLICY_OBJECTIVES:
            _refuse_samples(spec, micro_batches)
    except (CannotCompare, NoSamples) as error:
        raise NoReference(str(error)) from None
    if spec.objective == "kto" and (choices or keys):
        raise NoReference("which experts were chosen for the mismatched answers of the reference point is not recorded")
    if spec.objective not in ("dpo", "kto") or not chooses_alone(spec, choices=choices, keys=keys, step=step):
        return
    check_memory(source.checkpoint)
    answers = compute_initial_answers(spec, source, micro_batches, choices=choices, keys=keys, step=step)
    open_ = sum(int(rows.sum()) for rows in answers.undecided)
    if open_:
        rows = sum(micro.input_ids.shape[0] for micro in micro_batches)
        raise NoReference(
            f"which experts the reference model chose was not recorded, and in {open_} of {rows} rows the run's "
            "precision does not decide it"
        )


def _refuse_samples(spec: RunSpec, micro_batches: Sequence[MicroBatch]) -> None:
    for index, micro in enumerate(micro_batches):
        samples = read_samples_of(micro, index=index)
        if penalty_of(spec) and samples.reference is None:
            raise NoSamples(f"micro-batch {index}: the loss was given no log-probabilities of the reference model")
        if micro.token_losses_seen is not None and (near := count_near_clip(samples, micro.token_losses_seen, spec)):
            raise NoSamples(
                f"micro-batch {index}: rounding decides whether {near} ratios are clipped, and so whether they have a "
                "gradient"
            )


def _auxiliary_gradients(
    inputs: StepInputs, model: nn.Module, gradients: Mapping[str, torch.Tensor], *, initial: nn.Module | None
) -> dict[str, Projection]:
    """What the auxiliary term adds to the routers' gradients: those of the step, less those of the step without it."""
    if not inputs.has_auxiliary():
        return {}
    with float64_mode(inputs.source):
        alone = replace(inputs, config={}).compute(model, exact=True, initial=initial).result.gradients
    names = [
        f"{path}.{name}"
        for path, module in model.named_modules()
        if is_router(module)
        for name, _ in module.named_parameters(recurse=False)
    ]
    added = {name: gradients[name] - alone.get(name, 0.0) for name in names if name in gradients}
    return _project_all(added, inputs.config)


def _project_all(tensors: Mapping[str, torch.Tensor], config: Mapping[str, object]) -> dict[str, Projection]:
    return {
        name: project(name, tensor, blocks_of(name, tuple(tensor.shape), config=config))
        for name, tensor in tensors.items()
    }


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
