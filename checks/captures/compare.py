"""Two captures side by side, tensor by tensor, in bounded memory: neither is the reference, so this measures and does
not judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from checks.captures.capture import Capture, TensorRecord
from checks.captures.compared_settings import Setting, compare_settings
from checks.captures.files import StoredTensor, stream
from checks.captures.records import Missing
from checks.errors import CaptureError

CHUNK_ELEMENTS = 1 << 17
"""1 MB a buffer in float64, so that two fit the cache; peak memory does not depend on the tensors' size."""

KINDS = (
    "probe",
    "rollout",
    "batch",
    "loss_input",
    "target",
    "token_loss",
    "next_token",
    "score",
    "parameter_before",
    "module_input",
    "router",
    "module_output",
    "module_output_gradient",
    "gradient",
    "gradient_clipped",
    "optimizer_state_before",
    "optimizer_state",
    "parameter_after",
    "probe_after",
)
"""In the order in which a step produces them, so that the first difference is the earliest."""

KINDS_OF_NO_STEP = ("checkpoint", "checkpoint_state", "export")
"""What is read when the command has ended; their `step` is the place of the checkpoint, or 0."""


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
    rank: int = 0

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
    """`rows` in the order of the step; `only_a`, `only_b`: ranks, steps and tensors that one side lacks."""

    rows: tuple[TensorComparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    settings: tuple[Setting, ...]
    """scalar settings of optimizer, clipping and modules that differ: (name, a, b)"""
    missing_a: tuple[Missing, ...] = ()
    missing_b: tuple[Missing, ...] = ()
    exit_codes: tuple[int | None, int | None] = (None, None)
    ranks: int = 1
    """the most that either capture holds"""

    @property
    def differing(self) -> tuple[TensorComparison, ...]:
        return tuple(row for row in self.rows if row.moments is not None and row.moments.error != 0.0)

    @property
    def first(self) -> TensorComparison | None:
        """The earliest tensor of the step that differs."""
        return next(iter(self.differing), None)

    @property
    def equal(self) -> bool:
        """Everything both hold is equal, and neither holds more or ended otherwise."""
        lacking = [{(note.rank, note.step, note.what) for note in each} for each in (self.missing_a, self.missing_b)]
        alike = lacking[0] == lacking[1] and self.exit_codes[0] == self.exit_codes[1] and not self.settings
        complete = not self.only_a and not self.only_b and all(row.reason is None for row in self.rows)
        return alike and complete and not self.differing and bool(self.rows)


Place = tuple[int, int]
"""(step, rank)"""


def compare_captures(
    a: Capture, b: Capture, *, on_progress: Callable[[str], None] = lambda name: None
) -> CaptureComparison:
    """Compare what two captures have in common, by step, kind, rank and canonical name.

    Raises:
        CaptureError: one holds no step, or they have none in common.
    """
    places = _find_common(a, b)
    ranks = max(len(a.ranks), len(b.ranks))
    rows: list[TensorComparison] = []
    only_a, only_b = _find_lacking(a, b), _find_lacking(b, a)
    for step, kind, rank in _order(a, b, places):
        where = name_place(kind, step, rank, ranks=ranks)
        ours, theirs = _keyed(a, step, kind, rank), _keyed(b, step, kind, rank)
        only_a += [f"{where}, {kind} {_label(key)}" for key in ours.keys() - theirs.keys()]
        only_b += [f"{where}, {kind} {_label(key)}" for key in theirs.keys() - ours.keys()]
        for key, record in ours.items():
            if key in theirs:
                on_progress(f"{where}, {kind} {record.name}")
                rows.append(replace(_compare_parts(record, theirs[key], step=step), rank=rank))
    return CaptureComparison(
        rows=tuple(rows),
        only_a=tuple(sorted(only_a)),
        only_b=tuple(sorted(only_b)),
        settings=compare_settings(a, b, places, ranks=ranks > 1),
        missing_a=a.missing,
        missing_b=b.missing,
        exit_codes=(a.manifest.get("exit_code"), b.manifest.get("exit_code")),
        ranks=ranks,
    )


def name_place(kind: str, step: int, rank: int, *, ranks: int) -> str:
    """Where a tensor was recorded; the rank is named where there are several."""
    if kind in KINDS_OF_NO_STEP:
        return "export" if kind == "export" else f"checkpoint {step}"
    return f"step {step} of rank {rank}" if ranks > 1 else f"step {step}"


def _find_common(a: Capture, b: Capture) -> list[Place]:
    places = [{(step, rank) for rank, steps in each.records.items() for step in steps} for each in (a, b)]
    for capture, held in zip((a, b), places, strict=True):
        if not held:
            why = "; ".join(dict.fromkeys(note.why for note in capture.missing)) or "its manifest does not say why"
            raise CaptureError(str(capture.path), f"holds no recorded step ({why})", "record it again")
    if not places[0] & places[1]:
        ours, theirs = (_describe_steps(each, held) for each, held in zip((a, b), places, strict=True))
        raise CaptureError(
            str(b.path), f"holds steps {theirs}, {a.path} holds {ours}", "record both with the same --steps"
        )
    return sorted(places[0] & places[1])


def _describe_steps(capture: Capture, held: set[Place]) -> str:
    steps = str(sorted({step for step, _ in held}))
    return steps if capture.ranks == (0,) else f"{steps} of ranks {sorted({rank for _, rank in held})}"


def _find_lacking(one: Capture, other: Capture) -> list[str]:
    """Ranks and steps that the first alone holds."""
    ranks = [rank for rank, steps in one.records.items() if steps]
    there = {step for steps in other.records.values() for step in steps}
    lacking = [f"step {step}, all of it" for step in sorted({s for rank in ranks for s in one.records[rank]} - there)]
    for rank in ranks:
        theirs = other.records.get(rank) or {}
        if not theirs:
            lacking.append(f"rank {rank}, all of it")
            continue
        steps = sorted(set(one.records[rank]) & there - set(theirs))
        lacking += [f"step {step} of rank {rank}, all of it" for step in steps]
    return lacking


def _order(a: Capture, b: Capture, places: Iterable[Place]) -> Iterator[tuple[int, str, int]]:
    """(step, kind, rank) of what there is to compare, in the order in which it came to be."""
    held = {
        (int(entry["step"]), str(entry["kind"]), int(entry["rank"]))
        for capture in (a, b)
        for entry in capture.manifest["tensors"]
    }
    kinds = (*KINDS, *sorted({kind for _, kind, _ in held} - {*KINDS, *KINDS_OF_NO_STEP}))
    common = set(places)
    for step in sorted({step for step, _ in common}):
        for kind in kinds:
            yield from sorted(key for key in held if key[:2] == (step, kind) and (key[0], key[2]) in common)
    yield from sorted((key for key in held if key[1] in KINDS_OF_NO_STEP), key=lambda key: (key[1], key[0], key[2]))


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


def _keyed(capture: Capture, step: int, kind: str, rank: int) -> Mapping[Key, TensorRecord]:
    records = capture.all_tensors(step, kind, rank=rank)
    return {(record.name, record.field, record.micro_batch): record for record in records}


def _label(key: Key) -> str:
    name, field, micro_batch = key
    shown = name if field is None else f"{name} ({field})"
    return shown if micro_batch is None else f"{shown} of micro-batch {micro_batch}"


def _compare_parts(a: TensorRecord, b: TensorRecord, *, step: int) -> TensorComparison:
    """Compare what one rank holds of a tensor: another part of it may hold the same values, and is another part."""
    if a.global_shape == b.global_shape and a.where != b.where:
        reason = f"slices differ: {a.where} and {b.where}"
        return TensorComparison(step, a.kind, a.name, a.field, a.micro_batch, None, None, reason)
    return compare_tensors(a, b, step=step)


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
