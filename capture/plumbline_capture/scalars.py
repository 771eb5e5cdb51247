"""The scalar settings in force in a model: epsilons, scales, rope frequencies, caps, and its configuration."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Tuple

import torch
from torch import nn

from plumbline_capture.roots import Root

LONGEST_BUFFER = 512
"""numbers; a longer buffer (a mask, a table of positions) is no setting"""
_LONGEST_LIST = 64


def describe_scalars(root: Root) -> Dict[str, Dict[str, Any]]:
    """Return canonical module path → class and scalar attributes; "" is the model itself, with its flat `config`.

    Where a wrapper and the layer that it wraps share a path (PEFT's `base_layer`), `class` is the wrapped layer's,
    `wrapped_by` the wrapper's, and the attributes of both are there, the wrapper's first.
    """
    scalars: Dict[str, Dict[str, Any]] = {}
    wrappers: Dict[str, str] = {}
    for path, module in root.named_modules():
        entry = scalars.setdefault(path, {})
        if path in wrappers:
            entry.setdefault("wrapped_by", wrappers[path])
        entry["class"] = type(module).__name__
        wrappers[path] = f"{type(module).__module__}.{type(module).__qualname__}"
        for key, value in _scalar_attributes(module):
            entry.setdefault(key, value)
    config = getattr(root.model, "config", None)
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict):
        scalars[""]["config"] = dict(_flatten(to_dict()))
    return scalars


def _scalar_attributes(module: nn.Module) -> Iterator[Tuple[str, Any]]:
    for key, value in vars(module).items():
        if key == "training" or key.startswith("_"):
            continue
        if _is_scalar(value) or _is_scalar_list(value):
            yield key, value
        elif isinstance(value, Mapping):  # PEFT: scaling = {adapter: number}
            yield from _flatten({key: value})
    for key, buffer in module.named_buffers(recurse=False):
        if buffer.dim() <= 1 and buffer.numel() <= LONGEST_BUFFER and not hasattr(buffer, "placements"):
            yield key, buffer.detach().cpu().to(torch.float64 if buffer.is_floating_point() else buffer.dtype).tolist()


def _flatten(mapping: Mapping[Any, Any], prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield (dotted key, value) of the JSON values in a nested mapping."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif _is_scalar(value) or _is_scalar_list(value):
            yield f"{prefix}{key}", value
        elif isinstance(value, torch.dtype):
            yield f"{prefix}{key}", str(value)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _is_scalar_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= _LONGEST_LIST and all(_is_scalar(item) for item in value)
