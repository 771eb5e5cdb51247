"""The model that runs is the one asked for: weights, dtypes, attention and every scalar setting of its modules.

Reference: the requested checkpoint's tensors and config, never the capture. Weights are compared by sketch (a
difference of one element shows) and stats; settings by module path and attribute.
Catches: weights loaded wrongly or at random, a wrong eps, scale, rope table or cap, a silent change of dtype or
attention.
Cannot see: what the model's code does with right settings (`step.gradients`, `model.definition`).
Cost: one reading of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checks.captures.capture import Capture
from checks.captures.differences import Difference, record_difference
from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.model import AUTOCAST, PARAMETER_DTYPES
from checks.references.reference import Reference
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.settings"
SKETCH_ROUNDING = 1e-13
"""Two sketches of equal tensors differ at most by the rounding of a float64 sum of sums."""
LIST_TOLERANCE = 1e-6
"""For tables held in float32 (rope frequencies): their own rounding, and that of the pow that makes them."""
RUN_STATE = frozenset(
    {"training", "gradient_checkpointing", "layer_idx", "use_cache", "attn_implementation", "attention"}
)
"""Attributes that say how a run is organised, not what is computed."""


@dataclass(frozen=True)
class ScalarMismatch:
    """A module's setting in force against the config's."""

    module: str
    attribute: str
    asked: object
    in_force: object


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    step = capture.steps[0]
    reference = material.references.get(step)
    if reference is None:
        return inconclusive(NAME, material.why_not(step))
    if step != 1:
        return inconclusive(
            NAME, "step 1 was not captured, so the weights are no longer the checkpoint's; capture step 1"
        )
    weights = compare_weights(capture, reference)
    off = {name: d for name, d in weights.items() if not d.error <= SKETCH_ROUNDING * max(d.norm, 1.0)}
    unknown = sorted(set(capture.tensors(step, "parameter_before")) - set(reference.weights))
    unknown = [name for name in unknown if ".lora_" not in name]
    lacking = _never_loaded(capture, reference)
    differing = tuple(compare_scalars(capture.step(step).scalars, material.expected_scalars))
    idle = tuple(each for each in differing if _is_idle(each, capture, step))
    scalars = tuple(each for each in differing if each not in idle)
    dtypes = tuple(_dtype_mismatches(material, capture, step))
    problems = [
        *(_say_weight(name, d) for name, d in off.items()),
        *(f"{name} is not in the checkpoint" for name in unknown),
        *(f"{name} of the checkpoint is not in the model" for name in lacking),
        *_say_scalars(scalars),
        *dtypes,
    ]
    measurements = (
        *(
            Measurement(name, d.relative, SKETCH_ROUNDING, name not in off, 0.0, 2 * SKETCH_ROUNDING)
            for name, d in weights.items()
        ),
        Measurement("scalar settings that differ", float(len(scalars)), 0.0, not scalars, unit="count"),
        Measurement("dtypes and kernels that differ", float(len(dtypes)), 0.0, not dtypes, unit="count"),
    )
    compared = count_compared(capture.step(step).scalars, material.expected_scalars)
    evidence = {
        "weights_off": {name: {"relative": d.relative, "scale": d.scale} for name, d in off.items()},
        "scalars": [[m.module, m.attribute, m.asked, m.in_force] for m in scalars],
        "without_effect": [[m.module, m.attribute, m.asked, m.in_force] for m in idle],
        "compared_modules": compared,
    }
    limits = {"weights": 2 * SKETCH_ROUNDING}
    if not weights:
        return inconclusive(NAME, "no parameter of the checkpoint was recorded", measurements=measurements)
    if not problems:
        sentence = f"{len(weights)} weights are the checkpoint's, {compared} modules have the config's settings"
        if compared < len(material.expected_scalars):
            rest = len(material.expected_scalars) - compared
            sentence += f"; those of {rest} others are not told by the capture"
        if idle:
            said = f"{_path(idle[0])} is {idle[0].in_force}, asked {idle[0].asked}"
            sentence += f"; {said}, without effect on this step: that row has no gradient"
        return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=evidence)
    first = next(iter(off), None) or (unknown + lacking or [""])[0] or (_path(scalars[0]) if scalars else "dtypes")
    pattern = Pattern.STATE_TRANSFER if off or unknown or lacking else Pattern.MODEL_DEFINITION
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return Verdict(
        NAME,
        Status.FAIL,
        "; ".join(problems[:3]) + more,
        measurements,
        limits,
        pattern=pattern,
        first_wrong=first or None,
        evidence=evidence,
    )


def compare_weights(capture: Capture, reference: Reference) -> dict[str, Difference]:
    """Recorded weights before the first step against the checkpoint's, by canonical name."""
    records = capture.tensors(reference.step, "parameter_before")
    return {
        name: record_difference(records[name], projection)
        for name, projection in reference.weights.items()
        if name in records and ".lora_" not in name
    }


def compare_scalars(
    in_force: Mapping[str, Mapping[str, object]], expected: Mapping[str, Mapping[str, object]]
) -> Iterator[ScalarMismatch]:
    """Settings of modules that both sides know; an attribute that only one has is not comparable and left out."""
    for module, attributes in expected.items():
        running = in_force.get(module, {})
        for attribute, asked in attributes.items():
            if attribute in RUN_STATE or attribute not in running:
                continue
            value = running[attribute]
            if not _equal(value, asked):
                yield ScalarMismatch(module, attribute, asked, value)


def _is_idle(mismatch: ScalarMismatch, capture: Capture, step: int) -> bool:
    """Whether a row that is to be kept out of training, and is not, had nothing to learn from in this step.

    All that `padding_idx` does is to leave the gradient of its row zero
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html).
    """
    if mismatch.attribute != "padding_idx" or mismatch.in_force is not None or not isinstance(mismatch.asked, int):
        return False
    record = capture.tensors(step, "gradient").get(f"{mismatch.module}.weight")
    norms = None if record is None else record.read("row_norms")
    return norms is not None and mismatch.asked < norms.numel() and float(norms[mismatch.asked]) == 0.0


def count_compared(in_force: Mapping[str, Mapping[str, object]], expected: Mapping[str, Mapping[str, object]]) -> int:
    """How many modules have a setting that both sides state."""
    return sum(
        any(attribute in in_force.get(module, {}) for attribute in attributes if attribute not in RUN_STATE)
        for module, attributes in expected.items()
    )


def _equal(value: object, asked: object) -> bool:
    if isinstance(value, bool) or isinstance(asked, bool):
        return value == asked
    if isinstance(value, int | float) and isinstance(asked, int | float):
        return math.isclose(value, asked, rel_tol=1e-9, abs_tol=0.0)
    if isinstance(value, list | tuple) and isinstance(asked, list | tuple):
        return len(value) == len(asked) and all(
            math.isclose(a, b, rel_tol=LIST_TOLERANCE, abs_tol=0.0) for a, b in zip(value, asked, strict=True)
        )
    return value == asked


def _never_loaded(capture: Capture, reference: Reference) -> list[str]:
    record = capture.step(reference.step)
    known = set(record.trainable) | set(record.frozen)
    return [name for name in reference.weights if name not in known and ".lora_" not in name] if known else []


def _dtype_mismatches(material: Material, capture: Capture, step: int) -> Iterator[str]:
    model = capture.step(step).model
    asked = str(PARAMETER_DTYPES[material.spec.precision])
    kept = material.float32_names
    others = {dtype: count for dtype, count in model.parameter_dtypes.items() if dtype != asked}
    if others.get("torch.float32") == len(kept):
        del others["torch.float32"]
    records = capture.tensors(step, "parameter_before")
    narrowed = sorted(name for name in kept if name in records and records[name].dtype != "torch.float32")
    if narrowed:
        yield f"{narrowed[0]} is held in {asked.removeprefix('torch.')}, which its class keeps in float32"
    if others:
        shown = ", ".join(f"{count} in {dtype.removeprefix('torch.')}" for dtype, count in others.items())
        yield f"parameters are held in other dtypes than {asked.removeprefix('torch.')}: {shown}"
    autocast = AUTOCAST[material.spec.precision]
    if (model.autocast or None) != (None if autocast is None else str(autocast)):
        yield f"autocast is {model.autocast}, asked {autocast}"
    if model.attention is not None and model.attention != material.spec.attention:
        yield f"attention is {model.attention}, asked {material.spec.attention}"
    if not model.training:
        yield "the model runs in evaluation mode"


def _say_weight(name: str, difference: Difference) -> str:
    if abs(difference.cosine - 1.0) < 1e-9:
        return f"{name} is {difference.scale:.6g}× the checkpoint's"
    return f"{name} differs from the checkpoint by {difference.relative:.3g} of its norm"


def _say_scalars(mismatches: Sequence[ScalarMismatch]) -> Iterator[str]:
    """One sentence an attribute, however many modules share the mistake."""
    by_attribute: dict[str, list[ScalarMismatch]] = {}
    for mismatch in mismatches:
        by_attribute.setdefault(mismatch.attribute, []).append(mismatch)
    for attribute, group in by_attribute.items():
        first = group[0]
        more = f" and of {len(group) - 1} other modules" if len(group) > 1 else ""
        yield f"{attribute} of {first.module}{more} is {_show(first.in_force)}, asked {_show(first.asked)}"


def _show(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(f'{v:.6g}' for v in value[:3])}, …]"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _path(mismatch: ScalarMismatch) -> str:
    return f"{mismatch.module}.{mismatch.attribute}"


CHECK = Check(NAME, "the model that runs is the one asked for", __doc__ or "", judge, reference=True)
