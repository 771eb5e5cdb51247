"""The decoder: RMSNorm, grouped-query attention, SwiGLU, residuals; module paths are Hugging Face's.

Sources: RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, GQA arXiv:2305.13245, SwiGLU arXiv:2002.05202,
Llama arXiv:2302.13971, Qwen3 arXiv:2505.09388.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import nn

from checks.errors import BadRequest
from checks.references.plain.attention import Attention, allow_earlier, mix_values
from checks.references.plain.config import PlainConfig
from checks.references.plain.rope import RopeSettings, inverse_frequencies, rotate

Turn = tuple[torch.Tensor, torch.Tensor]
"""cos and sin of each position's angles: (B, 1, S, head_dim / 2) both."""


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight over the last dimension; the mean in `accumulate`, the product in x's dtype."""

    def __init__(self, size: int, *, eps: float, accumulate: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps
        self.accumulate = accumulate

    def normalise(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """x / √(mean(x²) + eps), in `accumulate`."""
        wide = hidden_states.to(self.accumulate)
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * self.normalise(hidden_states).to(hidden_states.dtype)


class RotaryEmbedding(nn.Module):
    """cos and sin of position × frequency, computed in `accumulate`."""

    inv_freq: torch.Tensor

    def __init__(self, rope: RopeSettings, *, head_dim: int, accumulate: torch.dtype) -> None:
        super().__init__()
        self.rope = rope
        self.attention_scaling = rope.attention_scaling
        self.head_dim = head_dim
        self.accumulate = accumulate
        self.compute_frequencies()

    def compute_frequencies(self) -> None:
        """Fill the buffer: no checkpoint holds it, and a model built without memory has it empty."""
        frequencies = inverse_frequencies(self.rope, head_dim=self.head_dim, dtype=self.accumulate)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> Turn:
        """position_ids: (B, S) → cos, sin: (B, 1, S, head_dim / 2) `dtype`."""
        angles = position_ids[:, None, :, None].to(self.accumulate) * self.inv_freq
        return (angles.cos() * self.attention_scaling).to(dtype), (angles.sin() * self.attention_scaling).to(dtype)


class SelfAttention(nn.Module):
    """Causal attention in which neighbouring query heads share a key and value head."""

    def __init__(self, config: PlainConfig, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
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
        self, hidden_states: torch.Tensor, position_embeddings: Turn, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states: (B, S, H); cos, sin; attention_mask: (B or 1, 1, S, S) bool, True = attends → (B, S, H)."""
        batch, length, _ = hidden_states.shape
        by_head = (batch, length, -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(by_head)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(by_head)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(by_head).transpose(1, 2)
        query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
        mixed = self.mix(query, key, value, attention_mask)
        output: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """(B, heads, S, d), keys and values (B, kv heads, S, d) → (B, heads, S, d)."""
        return mix_values(
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            attention=self.attention,
            accumulate=self.accumulate,
        )


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)); a family may have another activation."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, *, bias: bool = False, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.act_fn = activation or nn.SiLU()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gated = self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states)
        output: torch.Tensor = self.down_proj(gated)
        return output


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    `sliding_window`: how many keys its queries see, their own included; None: all earlier ones.
    """

    def __init__(
        self,
        *,
        self_attn: nn.Module,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        sliding_window: int | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.sliding_window = sliding_window

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: Any, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        mixed = self.self_attn(self.input_layernorm(hidden_states), position_embeddings, attention_mask)
        hidden_states = hidden_states + mixed
        output: torch.Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return output


class Decoder(nn.Module):
    """Embedding, layers, final norm. `rotary_emb` gives every layer its position embeddings."""

    def __init__(
        self, *, embed_tokens: nn.Embedding, layers: Sequence[DecoderLayer], norm: RMSNorm, rotary_emb: nn.Module
    ) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary_emb = rotary_emb
        self.sliding_windows = [layer.sliding_window for layer in layers]

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """input_ids, position_ids, attention_mask: (B, S) → (B, S, H)."""
        length, device = input_ids.shape[1], input_ids.device
        if position_ids is None:
            position_ids = torch.arange(length, device=device)[None]
        hidden_states: torch.Tensor = self.embed_tokens(input_ids)
        position_embeddings = self.rotary_emb(position_ids, hidden_states.dtype)
        attends = {
            window: allow_earlier(length, attention_mask, device=device, window=window)
            for window in set(self.sliding_windows)
        }
        for layer, window in zip(self.layers, self.sliding_windows, strict=True):
            hidden_states = layer(hidden_states, position_embeddings, attends[window])
        output: torch.Tensor = self.norm(hidden_states)
        return output


class PlainCausalLM(nn.Module):
    """Decoder and head. `accumulate` is the dtype of norms, softmax, rotary tables and returned logits."""

    def __init__(self, config: PlainConfig, model: Decoder, *, accumulate: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.accumulate = accumulate
        self.model = model
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
        return self.score_vocabulary(hidden_states).to(self.accumulate)

    def score_vocabulary(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, S, H) → (B, S, V) logits in the dtype of the computation."""
        logits: torch.Tensor = self.lm_head(hidden_states)
        return logits


def check_attention(attention: str) -> None:
    """Raise BadRequest unless `attention` is one that the plain models have."""
    if attention not in get_args(Attention):
        raise BadRequest("attention", f"is {attention!r}", f"choose one of {', '.join(get_args(Attention))}")
