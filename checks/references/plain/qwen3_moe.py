"""qwen3_moe: qwen3's attention, and experts chosen by the top k of a softmax.

Sources: arXiv:2505.09388, section 2 (128 experts of which 8 act, none shared, queries and keys normalised); the
released code is transformers' own class, to which config.json's settings refer, e.g.
https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from checks.errors import BadRequest
from checks.references.plain.attention import Attention
from checks.references.plain.config import (
    FULL,
    SLIDING,
    PlainConfig,
    read_common,
    read_count,
    read_size,
    read_top_k,
    read_windows,
    refuse_other_activation,
)
from checks.references.plain.experts import Experts
from checks.references.plain.modules import (
    Decoder,
    DecoderLayer,
    GatedMLP,
    PlainCausalLM,
    RMSNorm,
    RotaryEmbedding,
    SelfAttention,
)
from checks.references.plain.rope import UnsupportedModel


@dataclass(frozen=True)
class Qwen3MoeConfig(PlainConfig):
    """`routed`: whether a layer's feed-forward part is a mixture; `sliding_windows`: a layer's window or None."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    routed: tuple[bool, ...]
    sliding_windows: tuple[int | None, ...]

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, file: str = "config.json") -> Self:
        """Read the parsed content of config.json; raises as `PlainConfig.from_json`."""
        refuse_other_activation(raw)
        for name in ("head_dim", "norm_topk_prob"):
            if raw.get(name) is None:
                raise UnsupportedModel(f"{name} is not stated, and qwen3_moe has no published default for it")
        experts = read_size(raw, "num_local_experts" if "num_local_experts" in raw else "num_experts", file)
        layers = read_size(raw, "num_hidden_layers", file)
        return cls(
            **read_common(raw, file, head_dim=read_size(raw, "head_dim", file)),
            mlp_bias=False,
            num_experts=experts,
            num_experts_per_tok=read_top_k(raw, experts, file),
            moe_intermediate_size=read_size(raw, "moe_intermediate_size", file),
            norm_topk_prob=bool(raw["norm_topk_prob"]),
            routed=read_routed(raw, layers, file),
            sliding_windows=read_windows(raw, [read_layer_type(raw)] * layers, file),
        )


def read_routed(raw: Mapping[str, Any], layers: int, file: str) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer holds experts, but for those that `mlp_only_layers` names."""
    step = read_count(raw, "decoder_sparse_step", 1, file)
    dense = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        raise BadRequest(file, f"mlp_only_layers is {dense!r}", "give a list of layer indices")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def read_layer_type(raw: Mapping[str, Any]) -> str:
    """The one type that all layers have. Raises UnsupportedModel where the config divides them.

    Earlier Qwen models slide from layer `max_window_layers` on; transformers' qwen3_moe has no such setting. Where the
    two readings differ, there is no definition to hold to.
    """
    if any(kind != FULL for kind in raw.get("layer_types") or []):
        raise UnsupportedModel(f"layer_types {raw['layer_types']}: the definition has one type for all layers")
    if not raw.get("use_sliding_window", False) or raw.get("sliding_window") is None:
        return FULL
    if raw.get("max_window_layers"):
        raise UnsupportedModel(
            f"max_window_layers {raw['max_window_layers']} beside use_sliding_window: no published model has both, "
            "and readings of it differ"
        )
    return SLIDING


class Qwen3MoeRouter(nn.Module):
    """The k experts of highest probability, weighted by it, or by their share of what the k hold together."""

    def __init__(self, config: Qwen3MoeConfig, *, accumulate: torch.dtype) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.norm_topk_prob = config.norm_topk_prob
        self.accumulate = accumulate
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens, h) → logits (tokens, E), weights and indices of the chosen (tokens, k)."""
        logits = F.linear(hidden_states, self.weight)
        probabilities = torch.softmax(logits.to(self.accumulate), dim=-1)
        weights, indices = torch.topk(probabilities, self.top_k, dim=-1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights.to(logits.dtype), indices


class Qwen3MoeBlock(nn.Module):
    """Σ over the chosen experts of weight · expert(x)."""

    def __init__(self, config: Qwen3MoeConfig, *, accumulate: torch.dtype) -> None:
        super().__init__()
        self.experts = Experts(
            config.num_experts, hidden_size=config.hidden_size, intermediate_size=config.moe_intermediate_size
        )
        self.gate = Qwen3MoeRouter(config, accumulate=accumulate)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, S, h) → (B, S, h)."""
        tokens = hidden_states.flatten(0, 1)
        _, weights, indices = self.gate(tokens)
        output: torch.Tensor = self.experts(tokens, indices, weights)
        return output.view_as(hidden_states)


def build(config: Qwen3MoeConfig, *, attention: Attention, accumulate: torch.dtype) -> PlainCausalLM:
    """A qwen3_moe decoder with its head."""
    norm = partial(RMSNorm, config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
    layers = [
        DecoderLayer(
            self_attn=SelfAttention(config, attention=attention, accumulate=accumulate),
            mlp=Qwen3MoeBlock(config, accumulate=accumulate)
            if routed
            else GatedMLP(config.hidden_size, config.intermediate_size),
            norm=norm,
            sliding_window=window,
        )
        for routed, window in zip(config.routed, config.sliding_windows, strict=True)
    ]
    decoder = Decoder(
        embed_tokens=nn.Embedding(config.vocab_size, config.hidden_size),
        layers=layers,
        norm=norm(),
        rotary_emb=RotaryEmbedding(config.rope, head_dim=config.head_dim, accumulate=accumulate),
    )
    return PlainCausalLM(config, decoder, accumulate=accumulate)
