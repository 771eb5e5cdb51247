"""Which rows of a parameter belong together: heads, experts, vocabulary rows.

A fault in one head of 32, one expert of 128 or one row of a vocabulary is diluted in the whole tensor's error, so
each is compared by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch


@dataclass(frozen=True)
class Blocks:
    """`count` blocks of `rows` consecutive rows each along the first axis; 0 blocks: the tensor is one."""

    kind: str
    rows: int
    count: int

    def pool(self, rows: torch.Tensor) -> torch.Tensor:
        """Row norms (rows · count,) → block norms (count,), both float64."""
        return rows.reshape(self.count, self.rows).square().sum(1).sqrt()


WHOLE = Blocks("tensor", 0, 0)


def blocks_of(name: str, shape: tuple[int, ...], *, config: Mapping[str, Any]) -> Blocks:
    """Divide a parameter by its canonical name: q/k/v by head, embedding and head by row, stacked experts by expert."""
    if len(shape) < 2:
        return WHOLE
    if len(shape) == 3 and "expert" in name:
        return Blocks("expert", 1, shape[0])
    parts = name.split(".")
    module = parts[-2] if len(parts) > 1 else ""
    if module in ("embed_tokens", "lm_head"):
        return Blocks("vocabulary row", 1, shape[0])
    if module in ("q_proj", "k_proj", "v_proj"):
        size = head_dim(config)
        if size and shape[0] % size == 0 and shape[0] > size:
            return Blocks("head", size, shape[0] // size)
    return WHOLE


def head_dim(config: Mapping[str, Any]) -> int | None:
    """The config's head_dim, or hidden_size / num_attention_heads where it states none."""
    stated = config.get("head_dim")
    if stated:
        return int(stated)
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return int(hidden) // int(heads) if hidden and heads else None


def kind_of(name: str) -> str:
    """The parameter's kind for tables and limits: `q_proj`, `embed_tokens`, `norm` …, `bias` appended where it is
    one.
    """
    parts = name.split(".")
    module = parts[-2] if len(parts) > 1 else parts[0]
    if module in ("lora_A", "lora_B"):
        return f"{parts[-3]}.{module}"
    if "norm" in module:
        module = "norm"
    if module.isdigit() or module in ("experts", "self_attn", "linear_attn", "mlp"):
        module = parts[-1]
    return f"{module} bias" if parts[-1].endswith("bias") else module


def layer_of(name: str) -> int | None:
    """The decoder layer's index, None outside the layers."""
    parts = name.split(".")
    for here, following in pairwise(parts):
        if here == "layers" and following.isdigit():
            return int(following)
    return None
