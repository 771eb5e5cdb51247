"""gpt_oss: attention with sinks, every other layer in a window, and biased experts with a clamped SwiGLU.

Source: https://github.com/openai/gpt-oss/blob/main/gpt_oss/torch/model.py (arXiv:2508.10925, section 2). Weights lie as
transformers stores them: (E, in, out), gate and up columns alternating.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from checks.references.plain.attention import Attention, share_heads
from checks.references.plain.config import (
    FULL,
    SLIDING,
    PlainConfig,
    read_common,
    read_count,
    read_number,
    read_size,
    read_top_k,
    read_windows,
    refuse_other_activation,
)
from checks.references.plain.experts import add_experts
from checks.references.plain.modules import (
    Decoder,
    DecoderLayer,
    PlainCausalLM,
    RMSNorm,
    RotaryEmbedding,
    SelfAttention,
)

THETA = 150_000.0
RMS_NORM_EPS = 1e-5
HEAD_DIM = 64
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Defaults of ModelConfig, RMSNorm and swiglu in the released file: what a config leaves out."""


@dataclass(frozen=True)
class GptOssConfig(PlainConfig):
    """`sliding_windows`: a layer's window, None where it sees all earlier tokens."""

    num_local_experts: int
    num_experts_per_tok: int
    swiglu_alpha: float
    swiglu_limit: float
    sliding_windows: tuple[int | None, ...]

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, file: str = "config.json") -> Self:
        """Read the parsed content of config.json; raises as `PlainConfig.from_json`."""
        refuse_other_activation(raw)  # named silu in published configs, though the experts have a SwiGLU of their own
        layers = read_size(raw, "num_hidden_layers", file)
        types = raw.get("layer_types") or [FULL if layer % 2 else SLIDING for layer in range(layers)]
        if not (raw.get("rope_scaling") or raw.get("rope_parameters")):
            raw = {**raw, "rope_scaling": ROPE}
        experts = read_size(raw, "num_local_experts", file)
        return cls(
            **read_common(
                raw,
                file,
                head_dim=read_count(raw, "head_dim", HEAD_DIM, file),
                default_theta=THETA,
                default_eps=RMS_NORM_EPS,
                default_bias=True,
            ),
            mlp_bias=True,
            num_local_experts=experts,
            num_experts_per_tok=read_top_k(raw, experts, file),
            swiglu_alpha=read_number(raw, "swiglu_alpha", SWIGLU_ALPHA, file),
            swiglu_limit=read_number(raw, "swiglu_limit", SWIGLU_LIMIT, file),
            sliding_windows=read_windows(raw, types, file),
        )


class GptOssRMSNorm(RMSNorm):
    """The product with the weight, too, is in `accumulate`."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.normalise(hidden_states) * self.weight).to(hidden_states.dtype)


class SinkAttention(SelfAttention):
    """A learned score a head, the sink, takes its share of the softmax and gives nothing."""

    def __init__(self, config: GptOssConfig, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__(config, attention=attention, accumulate=accumulate)
        self.sinks = nn.Parameter(torch.empty(config.num_attention_heads))

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """softmax over [q·k / √d, sink] without its last column, times v; the softmax in q's dtype, as released."""
        batch, heads, length, _ = query.shape
        key, value = share_heads(key, heads), share_heads(value, heads)
        sinks = self.sinks.view(1, heads, 1, 1).expand(batch, heads, length, 1)
        if self.attention == "sdpa":
            return mix_beside_zero(query, key, value, attention_mask, sinks, scaling=self.scaling)
        scores = (query @ key.transpose(-1, -2) * self.scaling).masked_fill(~attention_mask, -math.inf)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
        return weights.to(value.dtype) @ value


def mix_beside_zero(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    sinks: torch.Tensor,
    *,
    scaling: float,
) -> torch.Tensor:
    """The same by torch's kernel: a further key and value of zeros, whose score is a bias, the sink."""
    batch, heads, length, _ = query.shape
    bias = sinks.new_zeros(batch, heads, length, length).masked_fill(~attention_mask, -math.inf)
    bias = torch.cat([bias, sinks], dim=-1).to(query.dtype)
    key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)


class GptOssRouter(nn.Module):
    """The k experts of highest score, weighted by the softmax over those k scores."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(config.num_local_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.num_local_experts))

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens, h) → logits (tokens, E), weights and indices of the chosen (tokens, k)."""
        logits = F.linear(hidden_states, self.weight, self.bias)
        values, indices = torch.topk(logits, self.top_k, dim=-1)
        return logits, torch.softmax(values, dim=-1), indices


class GptOssExperts(nn.Module):
    """gate_up_proj (E, h, 2i) with gate and up columns in turn, down_proj (E, i, h), biases (E, 2i) and (E, h)."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        experts, hidden, wide = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, hidden, 2 * wide))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(experts, 2 * wide))
        self.down_proj = nn.Parameter(torch.empty(experts, wide, hidden))
        self.down_proj_bias = nn.Parameter(torch.empty(experts, hidden))
        self.alpha = config.swiglu_alpha
        self.limit = config.swiglu_limit

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states: (tokens, h); top_k_index, top_k_weights: (tokens, k) → (tokens, h)."""
        return add_experts(self.run_expert, self.gate_up_proj.shape[0], hidden_states, top_k_index, top_k_weights)

    def run_expert(self, expert: int, hidden_states: torch.Tensor) -> torch.Tensor:
        """(n, h) → (n, h): down(gate · σ(alpha · gate) · (up + 1)), gate below the limit and up within it."""
        gate_up = hidden_states @ self.gate_up_proj[expert] + self.gate_up_proj_bias[expert]
        gate, up = gate_up[..., 0::2].clamp(max=self.limit), gate_up[..., 1::2].clamp(-self.limit, self.limit)
        gated = gate * torch.sigmoid(self.alpha * gate) * (up + 1)
        return gated @ self.down_proj[expert] + self.down_proj_bias[expert]


class GptOssMoe(nn.Module):
    """Σ over the chosen experts of weight · expert(x)."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.router = GptOssRouter(config)
        self.experts = GptOssExperts(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, S, h) → (B, S, h)."""
        tokens = hidden_states.flatten(0, 1)
        _, weights, indices = self.router(tokens)
        output: torch.Tensor = self.experts(tokens, indices, weights)
        return output.view_as(hidden_states)


def build(config: GptOssConfig, *, attention: Attention, accumulate: torch.dtype) -> PlainCausalLM:
    """A gpt_oss decoder with its head."""
    norm = partial(GptOssRMSNorm, config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
    layers = [
        DecoderLayer(
            self_attn=SinkAttention(config, attention=attention, accumulate=accumulate),
            mlp=GptOssMoe(config),
            norm=norm,
            sliding_window=window,
        )
        for window in config.sliding_windows
    ]
    decoder = Decoder(
        embed_tokens=nn.Embedding(config.vocab_size, config.hidden_size),
        layers=layers,
        norm=norm(),
        rotary_emb=RotaryEmbedding(config.rope, head_dim=config.head_dim, accumulate=accumulate),
    )
    return PlainCausalLM(config, decoder, accumulate=accumulate)
