"""The completions that a micro-batch trains on, as the trainer's loss was given them, laid along the model's batch."""

from __future__ import annotations

import torch

from checks.references.batch import MicroBatch
from checks.references.objectives import PROXIMAL, VARIANTS, GroupVariant, Samples
from checks.spec import RunSpec
from checks.tolerance import EPSILON

OLD, REFERENCE = "old_per_token_logps", "ref_per_token_logps"
"""Names of TRL's generation batch, (rows, completion tokens) each."""

RATIO_ROUNDINGS = 64.0
"""Roundings of a log-probability that may part the ratio of a run from that of its reference."""


class NoSamples(ValueError):
    """The capture does not say what the loss was given; `str()` is the reason, one sentence without a full stop."""


def read_samples_of(micro: MicroBatch, *, index: int) -> Samples:
    """Masks, advantages and log-probabilities of one micro-batch, at the positions that predict each completion token.

    Raises:
        NoSamples: the completions or advantages were not recorded, or do not fit the model's batch.
    """
    ids, mask, advantages = (micro.given.get(name) for name in ("completion_ids", "completion_mask", "advantages"))
    if ids is None or mask is None or advantages is None:
        raise NoSamples(f"micro-batch {index}: completions or advantages were not recorded as the loss was given them")
    rows, width = micro.input_ids.shape
    start = width - ids.shape[1]
    if ids.shape != mask.shape or start < 1 or not torch.equal(micro.input_ids[:, start:], ids):
        raise NoSamples(
            f"micro-batch {index}: the model's batch does not end in the completions that the loss was given"
        )
    if advantages.shape not in ((rows,), ids.shape):
        found = f"advantages have the shape {tuple(advantages.shape)}, not one a row or a token"
        raise NoSamples(f"micro-batch {index}: {found}")
    advantages = advantages.double()
    return Samples(
        mask=_lay(mask.bool(), start, width),
        advantages=advantages if advantages.dim() == 1 else _lay(advantages, start, width),
        old=_lay_values(micro.given.get(OLD), start, width),
        reference=_lay_values(micro.given.get(REFERENCE), start, width),
    )


def _lay_values(values: torch.Tensor | None, start: int, width: int) -> torch.Tensor | None:
    return None if values is None else _lay(values.double(), start, width)


def _lay(values: torch.Tensor, start: int, width: int) -> torch.Tensor:
    """(rows, completion tokens) → (rows, positions): token j is predicted at position start + j − 1."""
    laid = torch.zeros(values.shape[0], width, dtype=values.dtype)
    laid[:, start - 1 : start - 1 + values.shape[1]] = values
    return laid


def variant_of(spec: RunSpec) -> GroupVariant:
    """The variant of GRPO, or the objective of its form, that a run spec asks for."""
    return VARIANTS[spec.grpo_loss] if spec.objective == "grpo" else PROXIMAL[spec.objective]


def penalty_of(spec: RunSpec) -> float:
    """The weight of the penalty within the loss: ppo and reinforce_plus_plus penalise within the rewards."""
    return spec.beta if spec.objective == "grpo" else 0.0


def count_near_clip(samples: Samples, losses: torch.Tensor, spec: RunSpec) -> int:
    """Ratios so near an edge of the clip that rounding decides whether a gradient flows. losses: (B, S) float64."""
    if samples.old is None:
        return 0
    variant = variant_of(spec)
    gaps = (-losses - samples.old).masked_fill(~samples.mask, 0.0)
    sizes = losses.abs().masked_fill(~samples.mask, 0.0)
    kept = samples.mask
    if variant.level == "sequence":
        counts = kept.sum(dim=1).clamp(min=1)
        gaps, sizes, kept = gaps.sum(dim=1) / counts, sizes.amax(dim=1), kept.any(dim=1)
    edges = torch.tensor([1.0 - variant.low, 1.0 + variant.high], dtype=torch.float64).log()
    slack = RATIO_ROUNDINGS * EPSILON[spec.precision] * sizes.clamp(min=1.0)
    near = ((gaps[..., None] - edges).abs() <= slack[..., None]).any(dim=-1)
    return int((near & kept).sum())
