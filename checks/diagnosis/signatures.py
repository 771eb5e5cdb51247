"""Reading a failing comparison: what kind of fault has this shape. The table is in docs/design.md, *signatures*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checks.captures.blocks import kind_of, layer_of
from checks.captures.differences import Difference
from checks.tolerance import ScaleJudgement, TensorJudgement
from checks.verdict import Pattern

MANY = 0.9
"""Share of the tensors that must agree with a statement about "every" tensor."""


@dataclass(frozen=True)
class Signature:
    """A sentence for a person, the pattern that it points to, and where the fault starts if that can be told."""

    sentence: str
    pattern: Pattern
    where: str | None = None


def read_gradients(
    judgements: Sequence[TensorJudgement], scale: ScaleJudgement, *, forward_agrees: bool | None
) -> Signature:
    """Say in words how the gradients differ from their reference.

    `forward_agrees`: whether the per-token losses agree, None when that is not known.
    """
    wrong = [j for j in judgements if not j.holds]
    if not wrong:
        return Signature(f"the pooled scale of all gradients is {scale.scale:.6g}, not 1", Pattern.OBJECTIVE_SCALE)
    if _only_scaled(judgements, scale):
        return Signature(
            f"every gradient is {scale.scale:.4g}× the reference, cosine 1.000 from embedding to head: "
            "the loss is normalised by the wrong count",
            Pattern.OBJECTIVE_SCALE,
        )
    missing = [j.name for j in wrong if j.difference.other_norm == 0.0 and j.difference.norm > 0.0]
    if missing and len(missing) == len(wrong):
        return Signature(f"{_names(missing)} received no gradient", Pattern.OBJECTIVE_SCALE, missing[0])
    kinds = {kind_of(j.name) for j in wrong}
    layers = sorted({layer for j in wrong if (layer := layer_of(j.name)) is not None})
    worst = max(wrong, key=lambda j: j.ratio)
    numbers = f"worst {worst.name}: error {worst.difference.relative:.3g} of its norm, allowed {_allowed(worst):.3g}"
    if len(wrong) == 1:
        block = _block(worst)
        return Signature(f"only {worst.name} differs{block} ({numbers})", Pattern.MODEL_DEFINITION, worst.name)
    if len(kinds) == 1:
        kind = next(iter(kinds))
        return Signature(f"only the gradients of {kind} differ ({numbers})", Pattern.MODEL_DEFINITION, worst.name)
    total = {layer for j in judgements if (layer := layer_of(j.name)) is not None}
    if forward_agrees and layers and layers[-1] < max(total):
        return Signature(
            f"the forward agrees and the gradients differ from layer {layers[-1]} down to the input ({numbers})",
            Pattern.PRECISION,
            f"model.layers.{layers[-1]}",
        )
    if forward_agrees:
        return Signature(
            f"the forward agrees and {len(wrong)} of {len(judgements)} gradients differ ({numbers})",
            Pattern.OBJECTIVE_SCALE,
        )
    return Signature(
        f"{len(wrong)} of {len(judgements)} gradients differ in direction ({numbers})", Pattern.MODEL_DEFINITION
    )


def scale_spread(differences: Mapping[str, Difference]) -> tuple[float, float]:
    """Smallest and largest signed scale over the tensors that carry signal."""
    scales = [d.scale for d in differences.values() if d.norm > 0.0]
    return (min(scales), max(scales)) if scales else (1.0, 1.0)


def _only_scaled(judgements: Sequence[TensorJudgement], scale: ScaleJudgement) -> bool:
    """Every tensor is the same multiple of its reference: what is left after c is taken out lies in the noise."""
    c = scale.scale
    if scale.holds or c <= 0.0:
        return False
    close = [j for j in judgements if j.difference.residual(c) <= j.threshold * max(1.0, c)]
    return len(close) >= MANY * len(judgements)


def _allowed(judgement: TensorJudgement) -> float:
    return judgement.threshold / judgement.difference.norm if judgement.difference.norm else 0.0


def _block(judgement: TensorJudgement) -> str:
    if judgement.worst_block is None or judgement.block_ratio <= 1.0:
        return ""
    return f", worst in block {judgement.worst_block}"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
