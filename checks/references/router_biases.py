"""Biases of routers that no gradient trains: buffers that take part in the choice of experts only.

Source: https://arxiv.org/abs/2412.19437, section 2.1.2 (auxiliary-loss-free load balancing): a rule of its own moves
them, by the load. Neither transformers nor TRL has such a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from torch import nn

from checks.references.auxiliary import is_router
from checks.references.plain.load import list_shards


def read_router_biases(checkpoint: Path, model: nn.Module) -> Mapping[str, tuple[float, ...]]:
    """Name → values in the checkpoint of every bias that a router of `model` holds as a buffer, (E,) each."""
    wanted = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if is_router(module)
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.dim() == 1 and name not in module._non_persistent_buffers_set
    }
    found: dict[str, tuple[float, ...]] = {}
    for file in list_shards(checkpoint) if wanted else ():
        with safe_open(file, framework="pt") as shard:
            names = wanted & set(shard.keys())
            found |= {name: tuple(shard.get_tensor(name).double().tolist()) for name in sorted(names)}
    return found
