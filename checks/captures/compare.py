"""Two captures side by side, tensor by tensor, in bounded memory: neither is the reference, so this measures and does
not judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from checks.captures.capture import Capture, TensorRecord
from checks.captures.files import StoredTensor, stream
from checks.errors import CaptureError

CHUNK_ELEMENTS = 1 << 17
"""1 MB a buffer in float64, so that two fit the cache; peak memory does not depend on the tensors' size."""

KINDS = (
    "batch",
    "target",
    "token_loss",
    "score",
    "parameter_before",
    "module_output",
    "gradient",
    "gradient_clipped",
    "optimizer_state_before",
    "optimizer_state",
    "parameter_after",
)
"""In the order in which a step produces them, so that the first difference is the earliest."""


@dataclass(frozen=True)
class Moments:
    """‖a − b‖², ⟨a, b⟩, ‖a‖², ‖b‖² of two equally long streams, float64."""

    error: float
    dot: float
    a: float
    b: float


@dataclass(frozen=True)
class TensorComparison:
    """One tensor of a against its counterpart of b; `reason` says why the two cannot be compared, else None."""

    step: int
    kind: str
    name: str
    field: str | None
    micro_batch: int | None
    representation: str | None
    moments: Moments | None
    reason: str | None = None

    @property
    def relative(self) -> float:
        """‖a − b‖ / ‖b‖"""
        if self.moments is None:
            return math.nan
        if self.moments.b == 0.0:
            return 0.0 if self.moments.error == 0.0 else math.inf
        return math.sqrt(self.moments.error / self.moments.b)

    @property
    def scale(self) -> float:
        if self.moments is None or self.moments.b == 0.0:
            return math.nan
        return self.moments.dot / self.moments.b

    @property
    def cosine(self) -> float:
        if self.moments is None or self.moments.a == 0.0 or self.moments.b == 0.0:
            return math.nan
        return self.moments.dot / math.sqrt(self.moments.a * self.moments.b)


@dataclass(frozen=True)
class CaptureComparison:
    """`rows` in the order of the step; `only_a`, `only_b`: tensors that one side lacks."""

    rows: tuple[TensorComparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    settings: tuple[tuple[str, object, object], ...]
    """scalar settings of optimizer and clipping that differ: (name, a, b)"""

    @property
    def differing(self) -> tuple[TensorComparison, ...]:
        return tuple(row for row in self.rows if row.moments is not None and row.moments.error != 0.0)

    @property
    def first(self) -> TensorComparison | None:
        """The earliest tensor of the step that differs."""
        return next(iter(self.differing), None)

    @property
    def equal(self) -> bool:
        """Everything both hold is equal, and neither holds more."""
        complete = not self.only_a and not self.only_b and all(row.reason is None for row in self.rows)
        return complete and not self.differing and bool(self.rows)


def compare_captures(
    a: Capture, b: Capture, *, on_progress: Callable[[str], None] = lambda name: None
) -> CaptureComparison:
    """Compare what two captures have in common, by step, rank 0, kind and canonical name.

    Raises:
        CaptureError: one holds no step, or they have none in common.
    """
    steps = sorted(set(a.steps) & set(b.steps))
    for capture in (a, b):
        if not capture.steps:
            why = "; ".join(dict.fromkeys(note.why for note in capture.missing)) or "its manifest does not say why"
            raise CaptureError(str(capture.path), f"holds no recorded step ({why})", "record it again")
    if not steps:
        found = f"holds steps {list(b.steps)}, {a.path} holds {list(a.steps)}"
        raise CaptureError(str(b.path), found, "record both with the same --steps")
    rows = []
    only_a, only_b = (
        [f"step {step}, all of it" for step in sorted(set(one.steps) - set(other.steps))]
        for one, other in ((a, b), (b, a))
    )
    for step in steps:
        for kind in KINDS:
            ours, theirs = _keyed(a, step, kind), _keyed(b, step, kind)
            for key in ours.keys() | theirs.keys():
                label = f"step {step}, {kind} {_label(key)}"
                if key not in theirs:
                    only_a.append(label)
                elif key not in ours:
                    only_b.append(label)
            for key, record in ours.items():
                if key in theirs:
                    on_progress(f"step {step}, {kind} {record.name}")
                    rows.append(compare_tensors(record, theirs[key], step=step))
    return CaptureComparison(tuple(rows), tuple(sorted(only_a)), tuple(sorted(only_b)), tuple(_settings(a, b, steps)))


def stream_moments(a: StoredTensor, b: StoredTensor, *, elements: int = CHUNK_ELEMENTS) -> Moments:
    """Sums over two stored tensors of one length, `elements` at a time."""
    error, dot, aa, bb = [], [], [], []
    room = min(elements, a.numel)
    wide_a, wide_b = torch.empty(room, dtype=torch.float64), torch.empty(room, dtype=torch.float64)
    for left, right in zip(stream(a, elements=elements), stream(b, elements=elements), strict=True):
        x, y = wide_a[: left.numel()].copy_(left), wide_b[: right.numel()].copy_(right)
        dot.append(float(x @ y))
        aa.append(float(x @ x))
        bb.append(float(y @ y))
        x -= y
        error.append(float(x @ x))
    return Moments(math.fsum(error), math.fsum(dot), math.fsum(aa), math.fsum(bb))


def measure_moments(a: torch.Tensor, b: torch.Tensor) -> Moments:
    """Sums over two tensors of one length."""
    x, y = a.double().flatten(), b.double().flatten()
    return Moments(float((x - y).square().sum()), float(x @ y), float(x @ x), float(y @ y))


Key = tuple[str, str | None, int | None]


def _keyed(capture: Capture, step: int, kind: str) -> Mapping[Key, TensorRecord]:
    records = capture.all_tensors(step, kind)
    return {(record.name, record.field, record.micro_batch): record for record in records}


def _label(key: Key) -> str:
    name, field, micro_batch = key
    shown = name if field is None else f"{name} ({field})"
    return shown if micro_batch is None else f"{shown} of micro-batch {micro_batch}"


def compare_tensors(a: TensorRecord, b: TensorRecord, *, step: int) -> TensorComparison:
    """Compare two recorded tensors by the fullest representation that both have."""
    common = (step, a.kind, a.name, a.field, a.micro_batch)
    if a.global_shape != b.global_shape:
        return TensorComparison(*common, None, None, f"shapes differ: {a.global_shape} and {b.global_shape}")
    for representation in ("full", "sketch", "sample"):
        ours, theirs = a.representations.get(representation), b.representations.get(representation)
        if ours is not None and theirs is not None:
            if ours.numel == theirs.numel:
                return TensorComparison(*common, representation, stream_moments(ours, theirs))
            continue
        left, right = a.read(representation), b.read(representation)  # of what several ranks hold
        if left is not None and right is not None and left.numel() == right.numel():
            return TensorComparison(*common, representation, measure_moments(left, right))
    return TensorComparison(*common, None, None, "no representation in common")


def _settings(a: Capture, b: Capture, steps: list[int]) -> Iterator[tuple[str, object, object]]:
    for step in steps:
        ours, theirs = a.step(step), b.step(step)
        pairs: list[tuple[str, object, object]] = [
            (f"step {step}: optimizer", ours.optimizer.name, theirs.optimizer.name),
            (f"step {step}: micro-batches", len(ours.micro_batches), len(theirs.micro_batches)),
            (f"step {step}: clip max_norm", [c.max_norm for c in ours.clips], [c.max_norm for c in theirs.clips]),
        ]
        for index, (left, right) in enumerate(zip(ours.optimizer.groups, theirs.optimizer.groups, strict=False)):
            for setting in sorted(left.settings.keys() | right.settings.keys()):
                name = f"step {step}: {setting} of group {index}"
                pairs.append((name, left.settings.get(setting), right.settings.get(setting)))
        for path in sorted(ours.scalars.keys() & theirs.scalars.keys()):
            left_scalars, right_scalars = _flat(ours.scalars[path]), _flat(theirs.scalars[path])
            for attribute in sorted(left_scalars.keys() & right_scalars.keys()):
                pairs.append((f"step {step}: {path}.{attribute}", left_scalars[attribute], right_scalars[attribute]))
        yield from (pair for pair in pairs if pair[1] != pair[2])


def _flat(scalars: Mapping[str, object]) -> dict[str, object]:
    """A module's settings with those of its config beside them; where the model was read from is no setting."""
    flat = {name: value for name, value in scalars.items() if name not in ("config", "name_or_path")}
    config = scalars.get("config")
    if isinstance(config, Mapping):
        flat |= {f"config.{name}": value for name, value in config.items() if not name.startswith("_")}
    return flat
