"""Weights under which a fault shows: spread scores, unequal heads, uneven norms, biases that are not zero.

A freshly initialised model has scores near zero, so that softmax is uniform and a wrong mask, scale or rotary angle
changes almost nothing; its norms are all one, so that a swapped norm changes nothing at all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

EMBEDDING_STD = 0.02
"""initializer_range of nearly every published config"""
QK_GAIN = 1.2
"""without q/k norms the scores' standard deviation is QK_GAIN² ≈ 1.4"""
ROUTER_GAIN = 1.5
"""logits of the router spread by about 1.5, so that top-k has clear winners and near ties both"""
NORM_SPREAD = 0.3
BIAS_STD = 0.1
CORRECTION_STD = 0.05
"""expert bias of auxiliary-loss-free routing: smaller than the scores' spread, so that it shifts only close calls"""
HEAD_FACTORS = (0.5, 2.0)


def spread_weights(model: nn.Module, *, seed: int) -> None:
    """Overwrite every parameter and routing bias of `model` with non-degenerate values.

    A value depends on `seed` and the parameter's name alone, not on the order of modules. Norm weights keep their
    convention: around 1, or around 0 where the class multiplies by (1 + weight).
    """
    head_dims = _find_head_dims(model)
    drawn: set[int] = set()
    with torch.no_grad():
        for path, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in drawn:  # a tied head: the embedding's own tensor, which keeps the embedding's size
                    continue
                drawn.add(id(parameter))
                full_name = f"{path}.{name}"
                parameter.copy_(_draw(parameter, module, full_name, _generator(full_name, seed), head_dims))
            correction = getattr(module, "e_score_correction_bias", None)
            if isinstance(correction, Tensor):
                full_name = f"{path}.e_score_correction_bias"
                correction.copy_(CORRECTION_STD * _normal(correction.shape, _generator(full_name, seed)))


def _draw(
    parameter: Tensor, module: nn.Module, name: str, generator: torch.Generator, head_dims: Mapping[str, int]
) -> Tensor:
    """One parameter's values in float64, told by its module's kind and its own name."""
    shape, leaf = parameter.shape, name.rsplit(".", 1)[-1]
    z = _normal(shape, generator)
    if isinstance(module, nn.Embedding):
        return EMBEDDING_STD * z
    if "norm" in type(module).__name__.lower() and leaf == "weight":
        centred = bool(parameter.abs().max() == 0)  # Gemma and Qwen3-Next: y = x̂ · (1 + weight)
        return torch.exp(NORM_SPREAD * z) - float(centred)
    if leaf == "A_log":  # decay rates of linear attention, A in 1 … 4
        return torch.log(1 + 3 * torch.rand(shape, generator=generator, dtype=torch.float64))
    if leaf == "dt_bias":  # softplus(−2) ≈ 0.13: the state keeps 60–90 % a token, so that memory matters
        return -2 + 0.5 * z
    if leaf == "sinks":
        return z
    if leaf.endswith("bias"):
        return BIAS_STD * z
    if leaf.endswith("weight") and len(shape) == 1:
        return torch.exp(NORM_SPREAD * z)
    gain = _gain(name)
    return gain / math.sqrt(_fan_in(module, shape)) * z * _head_factors(name, shape, head_dims, generator)


def _gain(name: str) -> float:
    if any(f".{part}." in name for part in ("gate", "router")):  # `mlp.gate.weight`; a gated MLP's is `gate_proj`
        return ROUTER_GAIN
    return QK_GAIN if any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj")) else 1.0


def _fan_in(module: nn.Module, shape: torch.Size) -> int:
    """Inputs a value is summed over: the last axis, except for experts stored as (expert, in, out)."""
    if len(shape) == 3 and getattr(module, "is_transposed", False):
        return shape[1]
    return shape[-1]


def _head_factors(name: str, shape: torch.Size, head_dims: Mapping[str, int], generator: torch.Generator) -> Tensor:
    """(rows, 1) factors, equal within a head and between 0.5 and 2 across heads; 1 for other matrices."""
    rows, head_dim = shape[0], head_dims.get(name.rsplit(".", 2)[-2])
    if head_dim is None or len(shape) != 2 or rows % head_dim or rows == head_dim:
        return torch.ones((), dtype=torch.float64)
    low, high = (math.log(factor) for factor in HEAD_FACTORS)
    # Evenly spaced and shuffled: a few independent draws could come out nearly equal.
    steps = torch.linspace(low, high, rows // head_dim, dtype=torch.float64)
    shuffled = steps[torch.randperm(len(steps), generator=generator)]
    return torch.exp(shuffled).repeat_interleave(head_dim)[:, None]


def _find_head_dims(model: nn.Module) -> Mapping[str, int]:
    """Projection → rows a head has in it; latent attention (DeepSeek) has its own."""
    config: Any = model.config
    if hasattr(config, "qk_nope_head_dim"):
        nope = int(config.qk_nope_head_dim)
        return {"q_b_proj": nope + int(config.qk_rope_head_dim), "kv_b_proj": nope + int(config.v_head_dim)}
    settings = config.to_dict()  # an attribute that differs between layers cannot be read off the config
    heads, hidden = settings.get("num_attention_heads"), settings.get("hidden_size")
    head_dim = settings.get("head_dim") or (hidden // heads if heads and hidden else None)
    if head_dim is None:  # a model without attention
        return {}
    # Not k_proj: without q/k norms its factor would multiply that of q_proj, and some heads would attend to one token.
    return dict.fromkeys(("q_proj", "v_proj"), int(head_dim))


def _normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _generator(name: str, seed: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") % 2**63)
