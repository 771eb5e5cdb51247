"""The first wrong module, by re-synchronised inputs.

Each module of the reference is fed *the input that the framework's module received* and its output is compared with
what that module gave. An error upstream therefore cannot be blamed on a module downstream. Children complete before
their parents, so the first wrong output in order of completion belongs to the innermost module that is wrong by
itself. Where the modules that follow were given what the reference's module makes, the framework does beside its
module what the reference does in it, as releases differ in it: that is no fault, and such a module is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn

from checks.captures.capture import Capture
from checks.diagnosis.resynchronised import Captured, Outputs, captured_modules, run_resynchronised, slice_document
from checks.diagnosis.rounding import Rounding
from checks.references.batch import MicroBatch
from checks.references.replaying import Chosen

Side = Literal[0, 1]
RECEIVED: Final = 0
GAVE: Final = 1
"""places in what was captured of a module"""


@dataclass(frozen=True)
class ModuleError:
    """One module's deviation on its own inputs: relative to its output's norm, with floor and threshold."""

    module: str
    class_name: str
    error: float
    floor: float
    threshold: float

    @property
    def holds(self) -> bool:
        return self.error <= self.threshold


@dataclass(frozen=True)
class Divergence:
    """All modules in order of completion; `first` is the first wrong one, None when every module is right by itself.

    `deterministic`: whether a second pass repeated the step's gradients; `unsteady`: how far it was from doing so, in
    thresholds of a gradient's error, and 0 where it did not begin from the same batch, weights and random state.
    `rounding`: the lower precision that explains the first wrong module's output.
    """

    modules: tuple[ModuleError, ...]
    not_comparable: tuple[str, ...]
    deterministic: bool
    unsteady: float = 0.0
    rounding: Rounding | None = None

    @property
    def first(self) -> ModuleError | None:
        return next((module for module in self.modules if not module.holds), None)


def find_first_divergence(
    exact: nn.Module,
    own_precision: Sequence[nn.Module],
    capture: Capture,
    micro_batches: Sequence[MicroBatch],
    *,
    step: int,
    multiple: float,
    epsilon: float,
    deterministic: bool,
    exact_mode: AbstractContextManager[object],
    autocast: torch.dtype | None = None,
) -> Divergence:
    """Compare every recorded module of `step` with the reference on its own inputs.

    `exact`: the float64 reference, run inside `exact_mode`; `own_precision`: the same in the run's dtype, one a
    legitimate form; their deviation from `exact`, on the same inputs, is each module's floor.
    """
    captured = [captured_modules(capture, step, index) for index in range(len(micro_batches))]
    chosen = Chosen.read(capture, step, micro_batches)
    with exact_mode:
        truth = run_resynchronised(exact, captured, micro_batches, chosen, dtype=torch.float64)
    floors: dict[str, float] = {}
    unlike: set[str] = set()
    for model in own_precision:
        dtype = next(model.parameters()).dtype
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            noisy = run_resynchronised(model, captured, micro_batches, chosen, dtype=dtype)
        for path, sums in noisy.items():
            if path not in truth:
                continue
            deviation = _deviation(sums, truth[path])
            if deviation is None:
                unlike.add(path)
            else:
                floors[path] = max(floors.get(path, 0.0), deviation)
    modules, skipped = [], []
    for path, sums in truth.items():
        error = None if path in unlike else _captured_error(sums, captured, micro_batches, path)
        if error is None:
            skipped.append(path)
            continue
        floor = floors.get(path, 0.0) + epsilon
        module = ModuleError(path, sums.class_name, error, floor, multiple * floor)
        if not module.holds and _is_handed_on(sums, captured, micro_batches, within=module.threshold):
            skipped.append(path)
        else:
            modules.append(module)
    recorded = {path for micro in captured for path in micro}
    skipped += sorted(recorded - set(truth))
    return Divergence(tuple(modules), tuple(skipped), deterministic)


def describe_modules(divergence: Divergence) -> list[dict[str, object]]:
    """JSON values of every compared module, for a verdict's evidence."""
    return [
        {
            "module": module.module,
            "class": module.class_name,
            "error": module.error,
            "floor": module.floor,
            "threshold": module.threshold,
            "holds": module.holds,
        }
        for module in divergence.modules
    ]


def _deviation(noisy: Outputs, truth: Outputs) -> float | None:
    """‖noisy − truth‖ / ‖truth‖ over the documents; None for parts of an expert that was given other tokens."""
    pairs = [(noisy.outputs[key], value) for key, value in truth.outputs.items() if key in noisy.outputs]
    return None if any(a.shape != b.shape for a, b in pairs) else _relative(pairs)


def _captured_error(
    truth: Outputs, captured: Sequence[Captured], micro_batches: Sequence[MicroBatch], path: str, *, side: Side = GAVE
) -> float | None:
    """‖what a module was given, or gave, in the run − truth‖ / ‖truth‖; None where they are not of one layout."""
    pairs = []
    for (micro, document), value in truth.outputs.items():
        tensor = captured[micro].get(path, (None, None))[side]
        part = None if tensor is None else slice_document(tensor, document, micro_batches[micro].input_ids.shape)
        if part is None or part.numel() != value.numel():
            return None
        pairs.append((part.to(torch.float64).reshape(value.shape), value))
    return _relative(pairs)


def _is_handed_on(
    truth: Outputs, captured: Sequence[Captured], micro_batches: Sequence[MicroBatch], *, within: float
) -> bool:
    """Whether every module that follows directly was given what the reference's module makes."""
    errors = [_captured_error(truth, captured, micro_batches, path, side=RECEIVED) for path in truth.handed_to]
    return bool(errors) and all(error is not None and error <= within for error in errors)


def _relative(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    error = math.fsum(float((a - b).square().sum()) for a, b in pairs)
    square = math.fsum(float(b.square().sum()) for _, b in pairs)
    if square == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return math.sqrt(error / square)
