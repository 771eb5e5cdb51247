"""What is not as asked about a run's adapters, in reading order: place, size, strength, training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from checks.architecture.step_frozen import SAME, measure_movements
from checks.captures.capture import Capture, TensorRecord
from checks.captures.records import StepRecord
from checks.material import Material
from checks.precision.rounded import name_of
from checks.references.lora import A, B
from checks.references.model import PARAMETER_DTYPES
from checks.spec import RunSpec
from checks.verdict import Pattern

MARK = ".lora_"
SAME_SCALE = 1e-9
"""A scale is one division of two settings."""


@dataclass(frozen=True)
class Problem:
    """One way in which adapters are wrong. `where`: the first layer or parameter; `count`: how many there are."""

    where: str
    sentence: str
    count: int = 1
    pattern: Pattern = Pattern.MODEL_DEFINITION

    @property
    def text(self) -> str:
        return self.sentence if self.count == 1 else f"{self.sentence} ({self.count} in all)"


@dataclass(frozen=True)
class Adapters:
    """The adapters of one run: what was asked, and what its first and last captured steps hold."""

    spec: RunSpec
    capture: Capture
    expected: tuple[str, ...]
    weights: Mapping[str, TensorRecord]
    """name → record before the first captured step, of adapters alone"""
    moved: Mapping[str, float]
    """name → relative movement over the captured steps, of everything else"""

    @classmethod
    def read(cls, material: Material, capture: Capture) -> Adapters:
        first, last = capture.steps[0], capture.steps[-1]
        weights = {name: r for name, r in capture.tensors(first, "parameter_before").items() if MARK in name}
        moved = {name: by for name, by in measure_movements(capture, first, last).items() if MARK not in name}
        return cls(material.spec, capture, material.expected_adapters, weights, moved)

    @property
    def first(self) -> int:
        return self.capture.steps[0]

    @property
    def record(self) -> StepRecord:
        return self.capture.step(self.first)

    @property
    def scale(self) -> float:
        """alpha / r, as asked."""
        return self.spec.lora_alpha / self.spec.lora_r

    @property
    def expected_layers(self) -> tuple[str, ...]:
        return tuple(name.removesuffix(A) for name in self.expected if name.endswith(A))

    @property
    def still(self) -> int:
        return sum(by <= SAME for by in self.moved.values())

    def describe(self) -> list[dict[str, object]]:
        """A row an adapted layer: sizes, strength, and the norms of both factors and of their gradients."""
        gradients = self.capture.tensors(self.first, "gradient")
        rows: list[dict[str, object]] = []
        for layer in self.expected_layers:
            scales = [v for key, v in self.record.scalars.get(layer, {}).items() if key.startswith("scaling.")]
            row: dict[str, object] = {"layer": layer, "scale in force": scales[0] if scales else None}
            for factor, called in ((A, "A"), (B, "B")):
                record, gradient = self.weights.get(layer + factor), gradients.get(layer + factor)
                row[called] = None if record is None else " × ".join(str(size) for size in record.global_shape)
                row[f"norm of {called}"] = None if record is None else record.stats["norm"]
                row[f"norm of its gradient ({called})"] = None if gradient is None else gradient.stats["norm"]
            rows.append(row)
        return rows

    def norm(self, name: str) -> float:
        """Of a factor before the first captured step; NaN where it was not recorded."""
        return self.weights[name].norm if name in self.weights else math.nan


def find_problems(adapters: Adapters) -> tuple[Problem, ...]:
    """Everything that is not as asked; a way that concerns many layers is said once."""
    looks: tuple[Callable[[Adapters], Iterator[Problem]], ...] = (
        _misplaced,
        _missized,
        _scaled,
        _dropping,
        _held_otherwise,
        _begun_wrong,
        _untrained,
        _loose,
        _unreached,
    )
    return tuple(problem for look in looks for problem in look(adapters))


def _misplaced(adapters: Adapters) -> Iterator[Problem]:
    held = {*adapters.record.trainable, *adapters.record.frozen, *adapters.weights}
    yield from _one([(n, f"{n} is missing: the layer has no adapter") for n in adapters.expected if n not in held])
    others = sorted(name for name in held if MARK in name and name not in adapters.expected)
    targets = ", ".join(adapters.spec.lora_targets)
    yield from _one([(name, f"{name} was not asked for (targets: {targets})") for name in others])


def _missized(adapters: Adapters) -> Iterator[Problem]:
    r = adapters.spec.lora_r
    found = []
    for name, record in adapters.weights.items():
        if not name.endswith((A, B)) or len(record.global_shape) != 2:
            continue
        rank = record.global_shape[0 if name.endswith(A) else 1]
        if rank != r:
            found.append((name, f"{name} has rank {rank}, asked {r}"))
    yield from _one(found)


def _scaled(adapters: Adapters) -> Iterator[Problem]:
    found, merged = [], []
    for layer in adapters.expected_layers:
        settings = adapters.record.scalars.get(layer, {})
        for key, scale in settings.items():
            if key.startswith("scaling.") and not _close(scale, adapters.scale):
                found.append(
                    (f"{layer}.scaling", f"adapters of {layer} are scaled by {scale}, {_ask(adapters, scale)}")
                )
        if settings.get("merged_adapters"):
            merged.append((layer, f"the adapter of {layer} is merged into its weight while it trains"))
    yield from _one(found)
    yield from _one(merged)


def _ask(adapters: Adapters, scale: object) -> str:
    spec = adapters.spec
    stabilised = _close(scale, spec.lora_alpha / math.sqrt(spec.lora_r))
    note = "; that is alpha/√r, of rank-stabilised adapters (arXiv:2312.03732)" if stabilised else ""
    return f"asked alpha/r = {spec.lora_alpha:g}/{spec.lora_r} = {adapters.scale:g}{note}"


def _dropping(adapters: Adapters) -> Iterator[Problem]:
    found = []
    for path, settings in adapters.record.scalars.items():
        rate = settings.get("p")
        if ".lora_dropout" in path and isinstance(rate, int | float) and rate > 0.0:
            layer = path.split(".lora_dropout")[0]
            found.append(
                (f"{layer}.lora_dropout", f"what the adapter of {layer} reads is dropped with p={rate:g}, asked 0")
            )
    yield from _one(found)


def _held_otherwise(adapters: Adapters) -> Iterator[Problem]:
    asked = str(PARAMETER_DTYPES[adapters.spec.precision])
    others = [(name, record.dtype) for name, record in adapters.weights.items() if record.dtype != asked]
    said = [(name, f"{name} is held in {name_of(dtype)}, asked {name_of(asked)}") for name, dtype in others]
    yield from _one(said, Pattern.PRECISION)


def _begun_wrong(adapters: Adapters) -> Iterator[Problem]:
    """A that is zero, and A that another layer has too. Of a run that is past its first step nothing is known."""
    if adapters.first != 1:
        return
    yield from _one([(n, f"{n} is zero before the first step") for n in adapters.weights if _is_zero(adapters, n)])
    seen: list[tuple[str, torch.Tensor]] = []
    found = []
    for name, record in adapters.weights.items():
        full = record.read("full") if name.endswith(A) and record.norm > 0.0 else None
        if full is None:
            continue
        twin = next((other for other, known in seen if known.shape == full.shape and known.equal(full)), None)
        if twin is not None:
            found.append((name, f"{name} begins as {twin} does: the two were drawn by one state of the generator"))
        seen.append((name, full))
    yield from _one(found)


def _is_zero(adapters: Adapters, name: str) -> bool:
    return name.endswith(A) and adapters.norm(name) == 0.0


def _untrained(adapters: Adapters) -> Iterator[Problem]:
    record = adapters.record
    held = {name for group in record.optimizer.groups for name in group.parameters}
    frozen = [(name, f"{name} is frozen") for name in adapters.expected if name in record.frozen]
    yield from _one(frozen)
    left_out = [n for n in adapters.expected if n in record.trainable and n not in held]
    yield from _one([(name, f"{name} is in no group of the optimizer") for name in left_out])
    others = [name for name in (*record.trainable, *sorted(held - {*record.trainable})) if MARK not in name]
    yield from _one([(name, f"{name} is trained beside the adapters") for name in others])


def _loose(adapters: Adapters) -> Iterator[Problem]:
    moved = [(name, by) for name, by in adapters.moved.items() if by > SAME]
    yield from _one([(name, f"{name} of the base moves by {by:.3g} of its norm") for name, by in moved])


def _unreached(adapters: Adapters) -> Iterator[Problem]:
    """The gradient of A is Bᵀ times that of the product, and B's that times Aᵀ: each is zero with the other factor."""
    gradients = adapters.capture.tensors(adapters.first, "gradient")
    lost, odd = [], []
    for layer in adapters.expected_layers:
        a, b = (gradients[layer + factor].norm if layer + factor in gradients else 0.0 for factor in (A, B))
        norm_b = adapters.norm(layer + B)
        if a == 0.0 and b == 0.0:
            continue  # no token took this way (an expert's layer), or the module gets no gradient: step.gradients
        if norm_b == 0.0 and a > 0.0:
            odd.append((layer + A, f"{layer + A} has a gradient although lora_B is zero"))
        if norm_b > 0.0 and a == 0.0:
            lost.append((layer + A, f"{layer + A} has no gradient although lora_B is not zero"))
        if adapters.norm(layer + A) > 0.0 and b == 0.0:
            lost.append((layer + B, f"{layer + B} has no gradient although lora_A is not zero"))
    yield from _one(lost, Pattern.OBJECTIVE_SCALE)
    yield from _one(odd, Pattern.OBJECTIVE_SCALE)


def _one(found: list[tuple[str, str]], pattern: Pattern = Pattern.MODEL_DEFINITION) -> Iterator[Problem]:
    if found:
        where, sentence = found[0]
        yield Problem(where, sentence, len(found), pattern)


def _close(value: object, asked: float) -> bool:
    return isinstance(value, int | float) and math.isclose(float(value), asked, rel_tol=SAME_SCALE)
