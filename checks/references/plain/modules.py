"""The decoder: RMSNorm, grouped-query attention, SwiGLU, residuals; module paths are Hugging Face's.

Sources: RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, GQA arXiv:2305.13245, SwiGLU arXiv:2002.05202,
Llama arXiv:2302.13971, Qwen3 arXiv:2505.09388.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F

from checks.errors import BadRequest
from checks.references.plain.config import PlainConfig
from checks.references.plain.rope import inverse_frequencies, rotate

Attention = Literal["eager", "sdpa"]


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight over the last dimension; the mean in `accumulate`, the product in x's dtype."""

    def __init__(self, size: int, *, eps: float, accumulate: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps
        self.accumulate = accumulate

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.to(self.accumulate)
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normal.to(hidden_states.dtype)


class RotaryEmbedding(nn.Module):
    """cos and sin of position × frequency, computed in `accumulate`."""

    inv_freq: torch.Tensor

    def __init__(self, config: PlainConfig, *, accumulate: torch.dtype) -> None:
        super().__init__()
        self.attention_scaling = config.rope.attention_scaling
        self.accumulate = accumulate
        frequencies = inverse_frequencies(config.rope, head_dim=config.head_dim, dtype=accumulate)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids: (B, S) → cos, sin: (B, 1, S, head_dim / 2) `dtype`."""
        angles = position_ids[:, None, :, None].to(self.accumulate) * self.inv_freq
        return (angles.cos() * self.attention_scaling).to(dtype), (angles.sin() * self.attention_scaling).to(dtype)


class SelfAttention(nn.Module):
    """Causal attention in which `num_key_value_groups` neighbouring query heads share a key and value head."""

    def __init__(self, config: PlainConfig, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = 1.0 / math.sqrt(config.head_dim)
        self.attention = attention
        self.accumulate = accumulate
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, accumulate=accumulate)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, accumulate=accumulate)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        """hidden_states: (B, S, H); cos, sin; attention_mask: (B or 1, 1, S, S) bool, True = attends → (B, S, H)."""
        batch, length, _ = hidden_states.shape
        by_head = (batch, length, -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(by_head)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(by_head)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(by_head).transpose(1, 2)
        query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
        key = key.repeat_interleave(self.num_key_value_groups, dim=1)
        value = value.repeat_interleave(self.num_key_value_groups, dim=1)
        if self.attention == "sdpa":
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=self.scaling)
        else:
            mixed = self.attend(query, key, value, attention_mask)
        output: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """softmax(q·k / √d) · v, the softmax in `accumulate`; a query that may attend to nothing yields 0."""
        scores = (query @ key.transpose(-1, -2) * self.scaling).to(self.accumulate)
        nowhere = ~attention_mask.any(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(~attention_mask, -math.inf), dim=-1).masked_fill(nowhere, 0.0)
        return weights.to(query.dtype) @ value


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gated = self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        output: torch.Tensor = self.down_proj(gated)
        return output


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: PlainConfig, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, attention=attention, accumulate=accumulate)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        mixed = self.self_attn(self.input_layernorm(hidden_states), position_embeddings, attention_mask)
        hidden_states = hidden_states + mixed
        output: torch.Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return output


class Decoder(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, config: PlainConfig, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, attention=attention, accumulate=accumulate) for _ in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
        self.rotary_emb = RotaryEmbedding(config, accumulate=accumulate)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids, position_ids, attention_mask: (B, S) → (B, S, H)."""
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device)[None]
        hidden_states: torch.Tensor = self.embed_tokens(input_ids)
        position_embeddings = self.rotary_emb(position_ids, hidden_states.dtype)
        attends = allow_earlier(length, attention_mask, device=input_ids.device)
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_embeddings, attends)
        output: torch.Tensor = self.norm(hidden_states)
        return output


def allow_earlier(length: int, attention_mask: torch.Tensor | None, *, device: torch.device) -> torch.Tensor:
    """Which key a query may attend to: itself and earlier ones, padding (0 in the mask) excluded.

    attention_mask: (B, S), nonzero = token → (B or 1, 1, S, S) bool. Raises BadRequest for another shape.
    """
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]
    if attention_mask is None:
        return causal
    if attention_mask.dim() != 2 or attention_mask.shape[1] != length:
        found = f"has shape {tuple(attention_mask.shape)}"
        raise BadRequest("attention_mask", found, f"give a padding mask of (rows, {length})")
    return causal & attention_mask.bool()[:, None, None, :]


class PlainCausalLM(nn.Module):
    """Decoder and head. `accumulate` is the dtype of norms, softmax, rotary tables and returned logits."""

    def __init__(self, config: PlainConfig, *, attention: Attention = "sdpa", accumulate: torch.dtype) -> None:
        super().__init__()
        if attention not in get_args(Attention):
            raise BadRequest("attention", f"is {attention!r}", f"choose one of {', '.join(get_args(Attention))}")
        self.config = config
        self.accumulate = accumulate
        self.model = Decoder(config, attention=attention, accumulate=accumulate)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the head the embedding's own parameter where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        input_ids: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids, position_ids, attention_mask: (B, S) → logits (B, S, V) in `accumulate`.

        Rows are single documents, padded left or right; positions count from the row's start unless given. A packed
        row must be split into its documents first: position_ids turn the embedding, they do not mask.
        """
        hidden_states = self.model(input_ids, position_ids=position_ids, attention_mask=attention_mask)
        logits: torch.Tensor = self.lm_head(hidden_states)
        return logits.to(self.accumulate)
