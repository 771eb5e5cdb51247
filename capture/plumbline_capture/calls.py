"""Read the arguments and outputs of a module call, whatever their form."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

import torch
from torch import nn


def bind_arguments(model: nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the arguments of a forward by name: positional ones take theirs from the model's signature."""
    named: Dict[str, Any] = {}
    if args:
        forward: Callable[..., Any] = model.forward
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [
            name for name, parameter in inspect.signature(forward).parameters.items() if parameter.kind in positional
        ]
        for position, value in enumerate(args):
            named[names[position] if position < len(names) else f"argument_{position}"] = value
    named.update(kwargs)
    return named


def named_tensors(arguments: Mapping[str, Any]) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of the tensors among arguments; those in a mapping have a dotted name."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", tensor) for inner, tensor in named_tensors(value))


def rows_and_positions(arguments: Mapping[str, Any]) -> Optional[Tuple[int, int]]:
    """Return the batch's (rows, positions) as its token ids, embeddings or labels have them; None where none tells."""
    for name in ("input_ids", "inputs_embeds", "labels"):
        value = arguments.get(name)
        if isinstance(value, torch.Tensor) and value.dim() >= 2:
            return int(value.shape[0]), int(value.shape[1])
    for value in arguments.values():
        if isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point():
            return int(value.shape[0]), int(value.shape[1])
    return None


def output_field(output: Any, name: str) -> Optional[torch.Tensor]:
    """Return a tensor that a model's output holds under a name, be it a mapping or an object; else None."""
    value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return value if isinstance(value, torch.Tensor) else None


def first_output(output: Any) -> Optional[torch.Tensor]:
    """Return the tensor that a module hands on: its output, that output's hidden states or logits, or its first one."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        named = output_field(output, name)
        if named is not None:
            return named
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, (list, tuple)) else ()
    return next((item for item in items if isinstance(item, torch.Tensor)), None)


def first_floating(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Optional[torch.Tensor]:
    """Return the first floating tensor among the arguments of a module; `hidden_states` before other keywords."""
    candidates = [*args, kwargs.get("hidden_states"), *kwargs.values()]
    return next((item for item in candidates if isinstance(item, torch.Tensor) and item.is_floating_point()), None)


def to_float(value: Any) -> Optional[float]:
    """Return a number or one-element tensor as a float; None for anything else, or what only communication can tell."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return None
        if hasattr(value, "placements"):
            distributed: Any = value
            if not all(placement.is_replicate() for placement in distributed.placements):
                return None
            value = distributed.to_local()
        return float(value.detach())
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
