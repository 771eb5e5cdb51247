"""A model of the reference in which every module is fed the input that the framework's module received."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from checks.captures.capture import Capture
from checks.references.batch import Document, MicroBatch
from checks.references.replaying import Chosen
from checks.references.step import ForwardBatch, forward_logits, lay_out

Captured = Mapping[str, tuple[torch.Tensor | None, torch.Tensor | None]]
"""module path → (input, output) of one micro-batch, in the framework's layout"""


@dataclass
class Outputs:
    """One module's outputs, by micro-batch and document, and the class that ran.

    `handed_to`: the modules that are given this one's output itself, with nothing in between.
    """

    class_name: str
    outputs: dict[tuple[int, Document], torch.Tensor] = field(default_factory=dict)
    handed_to: tuple[str, ...] = ()


def captured_modules(capture: Capture, step: int, index: int) -> Captured:
    """What a second pass recorded of every module in one micro-batch."""
    inputs = capture.micro_batch_tensors(step, "module_input", index)
    outputs = capture.micro_batch_tensors(step, "module_output", index)
    return {
        name: (inputs[name].read("full") if name in inputs else None, record.read("full"))
        for name, record in outputs.items()
    }


def run_resynchronised(
    model: nn.Module,
    captured: Sequence[Captured],
    micro_batches: Sequence[MicroBatch],
    chosen: Chosen,
    *,
    dtype: torch.dtype,
) -> dict[str, Outputs]:
    """Run each document through the model, every module fed its captured input; outputs in order of completion.

    One pass a level of nesting: feeding a module and its parts at once would hide what the module does between them.
    """
    paths = {path for modules in captured for path in modules if path and _submodule(model, path) is not None}
    found: dict[str, Outputs] = {}
    levels = _levels(paths)
    with torch.no_grad(), chosen.replayed_by(model) as begin:
        for level in levels:
            for group in lay_out(micro_batches, "documents"):
                for batch in group:
                    piece = batch.pieces[0]
                    shape = micro_batches[piece.micro].input_ids.shape
                    begin(batch)
                    run_level(model, batch, captured[piece.micro], level, found, dtype=dtype, shape=shape)
        first = lay_out(micro_batches, "documents")[0][0]
        begin(first)
        return _in_order(model, found, first)


def _levels(paths: set[str]) -> list[set[str]]:
    """Modules by height: those that hold no other recorded module first. No level nests in itself."""
    heights: dict[str, int] = {}
    for path in sorted(paths, key=lambda p: -p.count(".")):
        below = [heights[other] for other in heights if other.startswith(f"{path}.")]
        heights[path] = 1 + max(below, default=-1)
    return [{p for p, h in heights.items() if h == height} for height in sorted(set(heights.values()))]


def run_level(
    model: nn.Module,
    batch: ForwardBatch,
    modules: Captured,
    level: set[str],
    found: dict[str, Outputs],
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


def _in_order(model: nn.Module, found: Mapping[str, Outputs], batch: ForwardBatch) -> dict[str, Outputs]:
    """The modules in the order in which one forward completes them, each with those that its output is handed to."""
    order: list[str] = []
    made: list[tuple[str, torch.Tensor]] = []
    handed: dict[str, list[str]] = {path: [] for path in found}

    def begin(path: str) -> Callable[..., None]:
        def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = first_tensor((*args, *kwargs.values()))
            for source, output in made:
                if output is given:
                    handed[source].append(path)

        return note

    def end(path: str) -> Callable[..., None]:
        def note(_module: nn.Module, _args: object, output: object) -> None:
            order.append(path)
            tensor = first_tensor(output)
            if tensor is not None:
                made.append((path, tensor))

        return note

    handles = []
    for path in found:
        module = model.get_submodule(path)
        handles.append(module.register_forward_pre_hook(begin(path), with_kwargs=True))
        handles.append(module.register_forward_hook(end(path)))
    try:
        forward_logits(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {path: replace(found[path], handed_to=tuple(handed[path])) for path in dict.fromkeys(order)}


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


def _keeper(found: dict[str, Outputs], path: str, key: tuple[int, Document]) -> Callable[..., None]:
    def keep(module: nn.Module, _args: object, output: object) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            sums = found.setdefault(path, Outputs(type(module).__name__))
            sums.outputs[key] = tensor.detach().to(torch.float64)

    return keep


def first_tensor(output: object) -> torch.Tensor | None:
    """The first floating tensor of a module's output (tuples and model outputs are searched in order)."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((tensor for value in values if (tensor := first_tensor(value)) is not None), None)


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
