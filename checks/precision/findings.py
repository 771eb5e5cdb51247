"""Places in which a run is not in the precision that was asked, one a kind of number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from plumbline_capture.sketch import sample

from checks.captures.capture import Capture, TensorRecord
from checks.captures.records import StepRecord
from checks.precision.rounded import held_by, name_of, rounded_from
from checks.references.model import AUTOCAST, PARAMETER_DTYPES
from checks.references.reference import Reference
from checks.spec import RunSpec

HELD = {"parameter_before": "parameters", "gradient": "gradients", "optimizer_state": "optimizer states"}
"""kind → how a sentence calls its tensors"""
COUNTER = "step"
"""The field of an optimizer's state that counts steps: no number of the training."""


@dataclass(frozen=True)
class Finding:
    """Numbers in another precision than asked. `where`: the first of them; `count`: how many tensors or settings."""

    where: str
    sentence: str
    count: int = 1


@dataclass(frozen=True)
class Compared:
    """How many things were looked at, by what they are, and what of them is wrong."""

    counts: Mapping[str, int]
    findings: tuple[Finding, ...]


def look(spec: RunSpec, capture: Capture, reference: Reference | None, *, float32: frozenset[str]) -> Compared:
    """Compare every recorded dtype with the asked one, and look for values that a lower precision has rounded.

    `reference`: that of step 1, whose weights are the checkpoint's; None where there is none. `float32`: parameters
    that the model's class keeps in float32 whatever is asked.
    """
    counts: dict[str, int] = {}
    findings: list[Finding] = []

    def add(what: str, count: int, found: Iterable[Finding]) -> None:
        if count:
            counts[what] = max(counts.get(what, 0), count)
        findings.extend(found)

    for step in capture.steps:
        record = capture.step(step)
        for kind, called in HELD.items():
            tensors = [t for t in capture.all_tensors(step, kind) if t.field != COUNTER and _is_floating(t.dtype)]
            add(called, len(tensors), _find_dtypes(spec, called, tensors, float32))
        add("settings of the forward and the loss", 3, _find_settings(spec, record))
        if spec.precision != "bf16_params":
            rounding = _Rounded(spec, capture, step)
            add("gradients' values", *rounding.gradients())
            add("optimizer states' values", *rounding.states())
            add("updated weights' values", *rounding.updates())
            add("routers' weights", *rounding.routers())
            if step == 1 and reference is not None:
                add("weights' values", *rounding.weights(reference))
    return Compared(counts, tuple(_first_of_each(findings)))


def compare_tables(
    in_force: Mapping[str, Mapping[str, object]], expected: Mapping[str, Mapping[str, object]]
) -> tuple[int, tuple[Finding, ...]]:
    """Settings and tables of modules (rotary frequencies, epsilons) that are the asked ones in a lower precision.

    Returns how many numbers were compared, and the finding of each attribute.
    """
    count, wrong = 0, dict[str, Finding]()
    for module, attributes in expected.items():
        for attribute, asked in attributes.items():
            running = in_force.get(module, {}).get(attribute)
            values, exact = _numbers(running), _numbers(asked)
            if values is None or exact is None or values.shape != exact.shape:
                continue
            count += values.numel()
            lower = rounded_from(values.float(), exact)
            if lower is not None:
                seen = wrong.get(attribute)
                sentence = f"{attribute} of {module} is rounded to {lower}"
                wrong[attribute] = (
                    Finding(f"{module}.{attribute}", sentence)
                    if seen is None
                    else Finding(seen.where, seen.sentence, seen.count + 1)
                )
    return count, tuple(wrong.values())


def _numbers(value: object) -> torch.Tensor | None:
    """A float, or a list of them; an integer or a flag is in no precision."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, float) for each in values):
        return None
    return torch.tensor(values, dtype=torch.float64)


def _find_dtypes(
    spec: RunSpec, called: str, tensors: Sequence[TensorRecord], float32: frozenset[str]
) -> Iterator[Finding]:
    usual = PARAMETER_DTYPES[spec.precision]
    others: dict[tuple[str, str], list[TensorRecord]] = {}
    for tensor in tensors:
        asked = str(torch.float32 if tensor.name in float32 else usual)
        if tensor.dtype != asked:
            others.setdefault((tensor.dtype, asked), []).append(tensor)
    for (dtype, asked), found in others.items():
        name = found[0].name if found[0].field is None else f"{found[0].field} of {found[0].name}"
        sentence = f"{name} is held in {name_of(dtype)}, asked {name_of(asked)}"
        more = f" ({len(found)} of {len(tensors)} {called})" if len(tensors) > 1 else ""
        yield Finding(f"dtype of {name}", sentence + more, len(found))


def _find_settings(spec: RunSpec, record: StepRecord) -> Iterator[Finding]:
    autocast = AUTOCAST[spec.precision]
    model = record.model
    if (model.autocast or None) != (None if autocast is None else str(autocast)):
        in_force = "off" if model.autocast is None else name_of(model.autocast)
        yield Finding("autocast", f"autocast is {in_force}, asked {'none' if autocast is None else name_of(autocast)}")
    computed = str(autocast or PARAMETER_DTYPES[spec.precision])
    if model.compute_dtype is not None and model.compute_dtype != computed:
        sentence = f"matrix products are computed in {name_of(model.compute_dtype)}, asked {name_of(computed)}"
        yield Finding("dtype of matrix products", sentence)
    for micro in record.micro_batches:
        for what, dtypes in (
            ("logits that the loss is computed from", [call.dtype for call in micro.cross_entropy]),
            ("loss that is back-propagated", [micro.backward_dtype] if micro.backward_dtype else []),
        ):
            low = [dtype for dtype in dtypes if dtype != str(torch.float32)]
            if low:
                # float32 whatever the model's dtype: ForCausalLMLoss upcasts the logits
                # (https://github.com/huggingface/transformers/blob/main/src/transformers/loss/loss_utils.py)
                yield Finding(f"dtype of the {what}", f"the {what} is in {name_of(low[0])}, not in float32")


class _Rounded:
    """Float32 tensors of one step whose values are all those of a lower precision."""

    def __init__(self, spec: RunSpec, capture: Capture, step: int) -> None:
        self._exact = spec.precision == "float32"  # autocast gives gradients that bfloat16 holds
        self._capture = capture
        self._step = step

    def weights(self, reference: Reference) -> tuple[int, Iterator[Finding]]:
        found = self._capture.tensors(self._step, "parameter_before")
        pairs = [(found[name], weight.full) for name, weight in reference.weights.items() if name in found]
        pairs = [(record, full) for record, full in pairs if record.dtype == str(torch.float32)]

        def judge() -> Iterator[tuple[str, str]]:
            for record, full in pairs:
                values = record.read("sample")
                if values is None or full is None or tuple(full.shape) != record.global_shape:
                    continue
                lower = rounded_from(values, sample(full, record.name).to(values.dtype))
                if lower is not None:
                    yield record.name, lower

        return len(pairs), _say("is the checkpoint's in", judge(), len(pairs), "weights")

    def gradients(self) -> tuple[int, Iterator[Finding]]:
        return self._held("gradient", "gradients", "the gradient of {}")

    def states(self) -> tuple[int, Iterator[Finding]]:
        return self._held("optimizer_state", "optimizer states", "{}")

    def routers(self) -> tuple[int, Iterator[Finding]]:
        return self._held("router", "routers' outputs", "what {} gives", representation="full")

    def _held(
        self, kind: str, called: str, words: str, *, representation: str = "sample"
    ) -> tuple[int, Iterator[Finding]]:
        records = [
            record
            for record in self._capture.all_tensors(self._step, kind)
            if self._exact and record.dtype == str(torch.float32) and record.field != COUNTER
        ]

        def judge() -> Iterator[tuple[str, str]]:
            for record in records:
                values = record.read(representation)
                lower = None if values is None else held_by(values.flatten())
                if lower is not None:
                    name = record.name if record.field is None else f"{record.field} of {record.name}"
                    yield words.format(name), lower

        return len(records), _say("is float32 and holds only numbers of", judge(), len(records), called)

    def updates(self) -> tuple[int, Iterator[Finding]]:
        """Weights that moved, and of which every element that did is now a number of a lower precision."""
        before = self._capture.tensors(self._step, "parameter_before")
        after = self._capture.tensors(self._step, "parameter_after")
        records = [r for name, r in after.items() if name in before and r.dtype == str(torch.float32)]

        def judge() -> Iterator[tuple[str, str]]:
            for record in records:
                new, old = record.read("sample"), before[record.name].read("sample")
                if new is None or old is None or new.shape != old.shape:
                    continue
                lower = held_by(new[new != old])
                if lower is not None:
                    yield record.name, lower

        return len(records), _say("holds, where the update moved it, only numbers of", judge(), len(records), "weights")


def _say(how: str, found: Iterator[tuple[str, str]], total: int, called: str) -> Iterator[Finding]:
    listed = list(found)
    if listed:
        name, lower = listed[0]
        yield Finding(name, f"{name} {how} {lower} ({len(listed)} of {total} {called})", len(listed))


def _is_floating(dtype: str) -> bool:
    return "float" in dtype


def _first_of_each(findings: Sequence[Finding]) -> Iterator[Finding]:
    seen = set()
    for finding in findings:
        if finding.where not in seen:
            seen.add(finding.where)
            yield finding
