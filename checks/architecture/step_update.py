"""The optimizer turns the gradients into the update that its paper defines, with the settings that were asked.

Reference: AdamW (arXiv:1711.05101) or SGD in float64, element by element on the recorded samples, with clipping, the
schedule's rate of that step, and weight decay on weights but not on norms or biases. Judged at every captured step
with a rate above zero, of every trained parameter that has a gradient; the moments are judged too, since AdamW's own
first update is blind to the gradients' scale.
Catches: wrong betas, eps, decay groups, schedule, clip threshold; parameters that no group holds; adapters that are
not trained.
Cannot see: wrong gradients (`step.gradients`), or what happens between the captured steps.
Cost: nothing beyond the run.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from checks.captures.blocks import kind_of
from checks.captures.capture import Capture
from checks.check import Check, inconclusive
from checks.material import Material
from checks.references.update import ParameterUpdate, expected_clip_factor, replay_update
from checks.tolerance import MULTIPLES, USEFUL_TENSOR_LIMIT
from checks.verdict import Measurement, Pattern, Status, Verdict

NAME = "step.update"


@dataclass(frozen=True)
class SettingMismatch:
    """A setting in force that is not the one asked, and where."""

    where: str
    setting: str
    asked: object
    in_force: object

    def __str__(self) -> str:
        return f"{self.setting} of {self.where} is {self.in_force}, asked {self.asked}"


def judge(material: Material) -> Verdict:
    capture = material.capture
    if capture is None or not capture.steps:
        return inconclusive(NAME, material.why_not())
    for step in capture.steps:
        untrained = find_untrained(material, capture, step)
        if not untrained:
            continue
        how = "frozen" if untrained[0] in capture.step(step).frozen else "in no optimizer group"
        since = "" if step == capture.steps[0] else f" at step {step}"
        return Verdict(
            NAME,
            Status.FAIL,
            f"{untrained[0]} is not trained{since}: it is {how} ({len(untrained)} parameters in all)",
            pattern=Pattern.OBJECTIVE_SCALE if not material.spec.lora else Pattern.MODEL_DEFINITION,
            first_wrong=untrained[0],
            evidence={"untrained": list(untrained)},
        )
    steps = [step for step in capture.steps if material.asked_rate(step) > 0.0]
    if not steps:
        return inconclusive(
            NAME, "the learning rate is 0 at every captured step; capture a step after warm-up (steps=…)"
        )
    verdicts = [_judge_step(material, capture, step) for step in steps]
    for status in (Status.FAIL, Status.INCONCLUSIVE):
        decisive = next((v for v in verdicts if v.status is status), None)
        if decisive is not None:
            return decisive
    if material.spec.optimizer == "adamw" and steps[-1] < 3:
        return inconclusive(
            NAME,
            "only the first update was captured, and AdamW's is blind to much; run with steps=3 or more",
            measurements=verdicts[-1].measurements,
        )
    measurements = tuple(m for v in verdicts for m in v.measurements)
    limits = {key: max(v.detection_limits.get(key, 0.0) for v in verdicts) for key in verdicts[0].detection_limits}
    names = " and ".join(str(step) for step in steps)
    parameters = len(verdicts[0].evidence["scales"])
    sentence = f"{parameters} parameters move as {material.spec.optimizer} defines, at steps {names}"
    return Verdict(NAME, Status.PASS, sentence, measurements, limits, evidence=verdicts[-1].evidence)


def _judge_step(material: Material, capture: Capture, step: int) -> Verdict:
    spec = material.spec
    updates = replay_update(
        spec,
        capture,
        step,
        decaying=material.weight_decay_names,
        total_steps=material.total_steps,
        float32=material.float32_names,
    )
    if not updates:
        return inconclusive(NAME, f"step {step}: no parameter was recorded before and after the update")
    multiple = MULTIPLES["float32"] if spec.precision != "bf16_params" else MULTIPLES["bf16_params"]
    measurements = tuple(m for update in updates.values() for m in _measure(update, multiple, step))
    mismatches = tuple(find_setting_mismatches(material, capture, step))
    limits = _limits(updates, multiple)
    evidence = {
        "step": step,
        "scales": {name: update.scale for name, update in updates.items()},
        "cosines": {name: update.cosine for name, update in updates.items()},
        "settings": [str(m) for m in mismatches],
        "learning_rate": material.asked_rate(step),
        "clip_factor": expected_clip_factor(spec, capture, step),
    }
    wrong = [m for m in measurements if not m.holds]
    lacking = find_unrecorded(capture, step, recorded=updates)
    if lacking and not mismatches and (not wrong or _lacks_norm(material, capture, step, lacking)):
        evidence["unrecorded"] = list(lacking)
        sentence = _describe_unrecorded(capture, step, lacking)
        return inconclusive(NAME, sentence, measurements=measurements, detection_limits=limits, evidence=evidence)
    if not wrong and not mismatches:
        useless = [
            u.name for u in updates.values() if u.norm and (multiple + 1.0) * u.floor / u.norm > USEFUL_TENSOR_LIMIT
        ]
        if len(useless) * 2 > len(updates):
            sentence = "the update is smaller than the parameters' own rounding; raise lr or use precision=float32"
            return inconclusive(NAME, sentence, measurements=measurements, detection_limits=limits, evidence=evidence)
        return Verdict(NAME, Status.PASS, f"step {step} agrees", measurements, limits, evidence=evidence)
    return Verdict(
        NAME,
        Status.FAIL,
        _describe(updates, wrong, mismatches, step),
        measurements,
        limits,
        pattern=Pattern.OBJECTIVE_SCALE,
        first_wrong=f"{mismatches[0].setting} of {mismatches[0].where}" if mismatches else wrong[0].name,
        evidence=evidence,
    )


def find_untrained(material: Material, capture: Capture, step: int) -> tuple[str, ...]:
    """Parameters that the run spec trains and the optimizer does not hold, or that were frozen since the first step.

    With LoRA these are the adapters of every target module, else every parameter of the model.
    """
    record = capture.step(step)
    held = {name for group in record.optimizer.groups for name in group.parameters}
    wanted = material.expected_adapters if material.spec.lora else (*record.trainable, *record.frozen)
    since = set(capture.step(capture.steps[0]).trainable) & set(record.frozen)
    return tuple(name for name in wanted if name not in held or name in since)


def find_unrecorded(capture: Capture, step: int, *, recorded: Container[str]) -> tuple[str, ...]:
    """Trained parameters that the optimizer stepped at this step, and whose update was not recorded whole.

    One without a gradient, such as an expert that no token chose, is not stepped.
    """
    record, gradients = capture.step(step), capture.tensors(step, "gradient")
    held = {name for group in record.optimizer.groups for name in group.parameters}
    idle = {name for name in record.optimizer.without_gradient if name not in gradients}
    return tuple(name for name in record.trainable if name in held - idle and name not in recorded)


def _lacks_norm(material: Material, capture: Capture, step: int, lacking: Sequence[str]) -> bool:
    """Whether all updates are replayed with a wrong clip factor, for a gradient is not there to be counted."""
    gradients = capture.tensors(step, "gradient")
    return material.spec.max_grad_norm > 0.0 and any(name not in gradients for name in lacking)


def _describe_unrecorded(capture: Capture, step: int, lacking: Sequence[str]) -> str:
    kinds = ("gradient", "parameter_before", "parameter_after")
    first, trained = lacking[0], len(capture.step(step).trainable)
    absent = [kind for kind in kinds if first not in capture.tensors(step, kind)] or ["sample"]
    notes = [note.why for note in capture.step(step).missing]
    why = f" ({notes[0]})" if notes else ""
    return (
        f"step {step}: the update of {len(lacking)} of {trained} trained parameters was not recorded{why}; the first "
        f"is {first}, without {' and '.join(absent)}; record the capture again"
    )


def find_setting_mismatches(material: Material, capture: Capture, step: int) -> Iterator[SettingMismatch]:
    """Settings in force in the optimizer's groups, and of clipping, that are not the asked ones."""
    spec = material.spec
    record = capture.step(step)
    wanted = {"lr": material.asked_rate(step)}
    if spec.optimizer == "adamw":
        wanted["eps"] = spec.eps
    else:
        wanted["momentum"] = spec.momentum
    for group in record.optimizer.groups:
        where = _group_name(group.parameters)
        for setting, asked in wanted.items():
            in_force = group.settings.get(setting)
            if not _same(in_force, asked):
                yield SettingMismatch(where, setting, asked, in_force)
        if spec.optimizer == "adamw":
            betas = group.settings.get("betas") or [None, None]
            for index, asked in enumerate((spec.beta1, spec.beta2)):
                if not _same(betas[index], asked):
                    yield SettingMismatch(where, f"beta{index + 1}", asked, betas[index])
        yield from _decay_mismatches(group.settings.get("weight_decay"), group.parameters, material)
    if spec.max_grad_norm > 0.0:
        last = [clip for clip in record.clips if clip.after_backward >= len(record.micro_batches)]
        if not last:
            yield SettingMismatch("the step", "max_grad_norm", spec.max_grad_norm, "no clipping")
        elif not _same(last[-1].max_norm, spec.max_grad_norm):
            yield SettingMismatch("the step", "max_grad_norm", spec.max_grad_norm, last[-1].max_norm)


def _decay_mismatches(in_force: object, parameters: Sequence[str], material: Material) -> Iterator[SettingMismatch]:
    for name in parameters:
        asked = material.spec.weight_decay if name in material.weight_decay_names else 0.0
        if not _same(in_force, asked):
            yield SettingMismatch(name, "weight_decay", asked, in_force)


def _same(in_force: object, asked: float) -> bool:
    """Equal up to the float32 in which a framework may keep a setting."""
    return isinstance(in_force, int | float) and math.isclose(float(in_force), asked, rel_tol=1e-6, abs_tol=1e-15)


def _measure(update: ParameterUpdate, multiple: float, step: int) -> Iterator[Measurement]:
    norm = update.norm or 1.0
    threshold = multiple * update.floor
    holds = update.error <= threshold
    floor = update.floor / norm
    yield Measurement(
        f"{update.name} (step {step})", update.error / norm, threshold / norm, holds, floor, (multiple + 1.0) * floor
    )
    for key, (error, noise) in update.moments.items():
        allowed = multiple * noise
        label = f"{key} of {update.name} (step {step})"
        yield Measurement(label, error, allowed, error <= allowed, noise, allowed + noise)


def _limits(updates: dict[str, ParameterUpdate], multiple: float) -> dict[str, float]:
    limits: dict[str, float] = {}
    for update in updates.values():
        if update.norm > 0.0:
            kind = kind_of(update.name)
            limits[kind] = max(limits.get(kind, 0.0), (multiple + 1.0) * update.floor / update.norm)
    return limits


def _describe(
    updates: dict[str, ParameterUpdate],
    wrong: Sequence[Measurement],
    mismatches: Sequence[SettingMismatch],
    step: int,
) -> str:
    parts = []
    if mismatches:
        first = mismatches[0]
        same = [m for m in mismatches if m.setting == first.setting]
        where = first.where
        norms = [m for m in same if kind_of(m.where) == "norm"]
        if first.setting == "weight_decay" and len(norms) == len(same):
            where = f"{len(same)} norm weights (first {first.where})"
        elif len(same) > 1:
            where = f"{len(same)} groups or parameters (first {first.where})"
        parts.append(f"{first.setting} of {where} is {_show(first.in_force)}, asked {_show(first.asked)}")
    if wrong:
        worst = max(wrong, key=lambda m: m.value / m.threshold if m.threshold else math.inf)
        parts.append(
            f"{len(wrong)} updates or moments of step {step} differ from the definition, worst {worst.name}: "
            f"off by {worst.value:.3g}, allowed {worst.threshold:.2g}"
        )
        scales = [u.scale for u in updates.values() if u.norm]
        if scales and max(scales) - min(scales) < 1e-3 and abs(scales[0] - 1.0) > 1e-3:
            parts.append(f"every update is {scales[0]:.4g}× the definition")
    return "; ".join(parts)


def _show(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _group_name(parameters: Sequence[str]) -> str:
    return f"the group of {parameters[0]}" if parameters else "an empty group"


CHECK = Check(NAME, "the update is what the optimizer's paper defines", __doc__ or "", judge)
