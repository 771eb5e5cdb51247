"""The objective of a run spec other than the mean over tokens, made for one computation of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from checks.references.batch import MicroBatch
from checks.references.initial import refer_answers
from checks.references.mismatched import estimate_points, read_mismatched
from checks.references.objectives import GroupRelative, Objective, OddsRatio, PreferenceMargin, Prospect, RewardMargin
from checks.references.routing import Choices
from checks.references.sampled import penalty_of, read_samples_of, variant_of
from checks.references.selection import Selections
from checks.references.step import ForwardBatch, Layout, forward_logits
from checks.spec import POLICY_OBJECTIVES, RunSpec


@dataclass(frozen=True)
class Manner:
    """How a step is computed: `choices` and `keys` are those that the initial model is made to take."""

    spec: RunSpec
    micro_batches: tuple[MicroBatch, ...]
    layout: Layout
    autocast: torch.dtype | None
    choices: Choices
    keys: Selections


def make_objective(one: Manner, model: nn.Module, initial: nn.Module | None) -> Objective | None:
    """The objective, None for the mean over tokens. `initial`: the checkpoint's model where the objective compares."""
    spec = one.spec
    if spec.objective in POLICY_OBJECTIVES:
        samples = tuple(read_samples_of(micro, index=index) for index, micro in enumerate(one.micro_batches))
        return GroupRelative(variant_of(spec), penalty_of(spec), samples, spec.max_completion_length)
    if spec.objective == "orpo":
        return OddsRatio(spec.beta, answers_of(one.micro_batches), tuple(micro.counted for micro in one.micro_batches))
    if spec.objective == "reward":
        return RewardMargin(spec.beta, tuple(micro.input_ids.shape[0] for micro in one.micro_batches))
    if initial is None:
        return None
    reference = refer_answers(
        initial, one.micro_batches, layout=one.layout, autocast=one.autocast, choices=one.choices, keys=one.keys
    )
    if spec.objective == "dpo":
        return PreferenceMargin(spec.beta, reference, tuple(micro.input_ids.shape[0] for micro in one.micro_batches))
    mismatched = read_mismatched(one.micro_batches)
    points = estimate_points(model, initial, mismatched, layout=one.layout, autocast=one.autocast)
    return Prospect(spec.beta, reference, points, tuple(micro.given["label"].bool() for micro in one.micro_batches))


def answers_of(micro_batches: Sequence[MicroBatch]) -> tuple[torch.Tensor, ...]:
    """(B, S) bool a micro-batch: the positions that predict a token of an answer."""
    return tuple(micro.counted if micro.answers is None else micro.answers for micro in micro_batches)


def forward_at(temperature: float, model: nn.Module, batch: ForwardBatch) -> torch.Tensor:
    """(b, s, V) logits, divided by the temperature that the run samples and trains at."""
    logits = forward_logits(model, batch)
    return logits if temperature == 1.0 else logits / temperature
