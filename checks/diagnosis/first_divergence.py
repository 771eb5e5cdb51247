"""The first wrong module, by re-synchronised inputs.

Each module of the reference is fed *the input that the framework's module received* and its output is compared with
what that module gave. An error upstream therefore cannot be blamed on a module downstream. Children complete before
their parents, so the first wrong output in order of completion belongs to the innermost module that is wrong by
itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from checks.captures.capture import Capture
from checks.references.batch import Document, MicroBatch
from checks.references.step import ForwardBatch, forward_logits, lay_out

Captured = Mapping[str, tuple[torch.Tensor | None, torch.Tensor | None]]
"""module path → (input, output) of one micro-batch, in the framework's layout"""


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
    """All modules in order of completion; `first` is the first wrong one, None when every module is right by itself."""

    modules: tuple[ModuleError, ...]
    not_comparable: tuple[str, ...]
    deterministic: bool

    @property
    def first(self) -> ModuleError | None:
        return next((module for module in self.modules if not module.holds), None)


@dataclass
class _Outputs:
    """One module's outputs, by micro-batch and document, and the class that ran."""

    class_name: str
    outputs: dict[tuple[int, Document], torch.Tensor] = field(default_factory=dict)


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
    captured = [_captured_modules(capture, step, index) for index in range(len(micro_batches))]
    with exact_mode:
        truth = _run_resynchronised(exact, captured, micro_batches, dtype=torch.float64)
    floors: dict[str, float] = {}
    for model in own_precision:
        dtype = next(model.parameters()).dtype
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            noisy = _run_resynchronised(model, captured, micro_batches, dtype=dtype)
        for path, sums in noisy.items():
            if path in truth:
                floors[path] = max(floors.get(path, 0.0), _deviation(sums, truth[path]))
    modules, skipped = [], []
    for path, sums in truth.items():
        error = _captured_error(sums, captured, micro_batches, path)
        if error is None:
            skipped.append(path)
            continue
        floor = floors.get(path, 0.0) + epsilon
        modules.append(ModuleError(path, sums.class_name, error, floor, multiple * floor))
    recorded = {path for micro in captured for path in micro}
    skipped += sorted(recorded - set(truth))
    return Divergence(tuple(modules), tuple(skipped), deterministic)


def _captured_modules(capture: Capture, step: int, index: int) -> Captured:
    inputs = capture.micro_batch_tensors(step, "module_input", index)
    outputs = capture.micro_batch_tensors(step, "module_output", index)
    return {
        name: (inputs[name].read("full") if name in inputs else None, record.read("full"))
        for name, record in outputs.items()
    }


def _run_resynchronised(
    model: nn.Module, captured: Sequence[Captured], micro_batches: Sequence[MicroBatch], *, dtype: torch.dtype
) -> dict[str, _Outputs]:
    """Run each document through the model, every module fed its captured input; outputs in order of completion.

    One pass a level of nesting: feeding a module and its parts at once would hide what the module does between them.
    """
    paths = {path for modules in captured for path in modules if path and _submodule(model, path) is not None}
    found: dict[str, _Outputs] = {}
    levels = _levels(paths)
    with torch.no_grad():
        for level in levels:
            for group in lay_out(micro_batches, "documents"):
                for batch in group:
                    piece = batch.pieces[0]
                    shape = micro_batches[piece.micro].input_ids.shape
                    _run_level(model, batch, captured[piece.micro], level, found, dtype=dtype, shape=shape)
        return _in_order(model, found, lay_out(micro_batches, "documents"))


def _levels(paths: set[str]) -> list[set[str]]:
    """Modules by height: those that hold no other recorded module first. No level nests in itself."""
    heights: dict[str, int] = {}
    for path in sorted(paths, key=lambda p: -p.count(".")):
        below = [heights[other] for other in heights if other.startswith(f"{path}.")]
        heights[path] = 1 + max(below, default=-1)
    return [{p for p, h in heights.items() if h == height} for height in sorted(set(heights.values()))]


def _run_level(
    model: nn.Module,
    batch: ForwardBatch,
    modules: Captured,
    level: set[str],
    found: dict[str, _Outputs],
    *,
    dtype: torch.dtype,
    shape: torch.Size,
) -> None:
    """One document's forward with the modules of one level fed their captured inputs and their outputs kept."""
    piece = batch.pieces[0]
    handles = []
    for path in level & set(modules):
        module = model.get_submodule(path)
        given = modules[path][0]
        part = None if given is None else slice_document(given, piece.document, shape)
        if part is not None:
            feed = _feeder(part.to(dtype) if part.is_floating_point() else part)
            handles.append(module.register_forward_pre_hook(feed, with_kwargs=True))
        handles.append(module.register_forward_hook(_keeper(found, path, (piece.micro, piece.document))))
    try:
        forward_logits(model, batch)
    finally:
        for handle in handles:
            handle.remove()


def _in_order(
    model: nn.Module, found: Mapping[str, _Outputs], groups: Sequence[Sequence[ForwardBatch]]
) -> dict[str, _Outputs]:
    """The modules in the order in which one forward completes them."""
    order: list[str] = []
    handles = [
        model.get_submodule(path).register_forward_hook(lambda _m, _a, _o, path=path: order.append(path))
        for path in found
    ]
    try:
        forward_logits(model, groups[0][0])
    finally:
        for handle in handles:
            handle.remove()
    return {path: found[path] for path in dict.fromkeys(order)}


def slice_document(tensor: torch.Tensor, document: Document, shape: torch.Size) -> torch.Tensor | None:
    """The part of a captured (B, S, …), (B·S, …) or (1, S, …) tensor that belongs to a document, batch axis kept.

    None where the tensor is not laid along the batch.
    """
    rows, length = shape
    span = slice(document.start, document.stop)
    if tensor.dim() >= 2 and tuple(tensor.shape[:2]) == (rows, length):
        return tensor[document.row : document.row + 1, span]
    if tensor.dim() >= 1 and tensor.shape[0] == rows * length:
        return tensor.reshape(rows, length, *tensor.shape[1:])[document.row, span]
    if tensor.dim() >= 2 and tuple(tensor.shape[:2]) == (1, length):
        return tensor[:, span]
    return None


def _feeder(value: torch.Tensor) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """A pre-hook that puts the captured input in the place of the first floating tensor argument."""

    def feed(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for index, argument in enumerate(args):
            if _replaceable(argument, value):
                return (*args[:index], value.reshape(argument.shape), *args[index + 1 :]), kwargs
        for key, argument in kwargs.items():
            if _replaceable(argument, value):
                return args, {**kwargs, key: value.reshape(argument.shape)}
        return args, kwargs

    return feed


def _replaceable(argument: object, value: torch.Tensor) -> bool:
    return isinstance(argument, torch.Tensor) and argument.is_floating_point() and argument.numel() == value.numel()


def _keeper(found: dict[str, _Outputs], path: str, key: tuple[int, Document]) -> Callable[..., None]:
    def keep(module: nn.Module, _args: object, output: object) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            sums = found.setdefault(path, _Outputs(type(module).__name__))
            sums.outputs[key] = tensor.detach().to(torch.float64)

    return keep


def first_tensor(output: object) -> torch.Tensor | None:
    """The first floating tensor of a module's output (tuples and model outputs are searched in order)."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((tensor for value in values if (tensor := first_tensor(value)) is not None), None)


def _deviation(noisy: _Outputs, truth: _Outputs) -> float:
    """‖noisy − truth‖ / ‖truth‖ over the documents."""
    pairs = [(noisy.outputs[key], value) for key, value in truth.outputs.items() if key in noisy.outputs]
    return _relative(pairs)


def _captured_error(
    truth: _Outputs, captured: Sequence[Captured], micro_batches: Sequence[MicroBatch], path: str
) -> float | None:
    pairs = []
    for (micro, document), value in truth.outputs.items():
        output = captured[micro].get(path, (None, None))[1]
        part = None if output is None else slice_document(output, document, micro_batches[micro].input_ids.shape)
        if part is None or part.numel() != value.numel():
            return None
        pairs.append((part.to(torch.float64).reshape(value.shape), value))
    return _relative(pairs)


def _relative(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    error = math.fsum(float((a - b).square().sum()) for a, b in pairs)
    square = math.fsum(float(b.square().sum()) for _, b in pairs)
    if square == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return math.sqrt(error / square)


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
