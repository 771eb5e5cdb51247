"""deepseek_v3: multi-head latent attention, and experts chosen by biased sigmoid scores within the best groups.

Sources: arXiv:2412.19437, section 2.1 (equations 1 to 11: latent attention; 12 to 16: routing); the released code,
https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/model.py and
https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/modeling_deepseek.py. The layers that predict further tokens
(section 2.2) are no part of the decoder, and their tensors are passed over.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from checks.references.plain.attention import Attention, mix_values
from checks.references.plain.deepseek_v3_config import DeepseekV3Config
from checks.references.plain.experts import Experts
from checks.references.plain.modules import (
    Decoder,
    DecoderLayer,
    GatedMLP,
    PlainCausalLM,
    RMSNorm,
    RotaryEmbedding,
    Turn,
)
from checks.references.plain.rope import rotate, rotate_neighbours, yarn_temperature

LATENT_NORM_EPS = 1e-6
"""Of the norms of both latents, whatever rms_norm_eps says: RMSNorm's default in both released files."""

GROUP_SCORE_EXPERTS = 2
"""A group is scored by the sum of its best two experts: topk(2) in both released files. Section 2.1.2 has K_r / M, the
chosen experts over the chosen groups, which is 2 for the published 8 experts of 4 groups."""


class LatentAttention(nn.Module):
    """Keys and values of all heads from one latent a token; the rotary part of the key is shared by the heads."""

    def __init__(self, config: DeepseekV3Config, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.attention = attention
        self.accumulate = accumulate
        heads, bias = config.num_attention_heads, config.attention_bias
        latent_norm = partial(RMSNorm, eps=LATENT_NORM_EPS, accumulate=accumulate)
        if config.q_lora_rank is None:
            self.q_proj = nn.Linear(config.hidden_size, heads * config.qk_head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(config.hidden_size, config.q_lora_rank, bias=bias)
            self.q_a_layernorm = latent_norm(config.q_lora_rank)
            self.q_b_proj = nn.Linear(config.q_lora_rank, heads * config.qk_head_dim, bias=False)
        latent = config.kv_lora_rank + config.qk_rope_head_dim
        self.kv_a_proj_with_mqa = nn.Linear(config.hidden_size, latent, bias=bias)
        self.kv_a_layernorm = latent_norm(config.kv_lora_rank)
        self.kv_b_proj = nn.Linear(
            config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim), bias=False
        )
        self.o_proj = nn.Linear(heads * config.v_head_dim, config.hidden_size, bias=bias)
        self.scaling = scale_scores(config)

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: Turn, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states: (B, S, H); cos, sin; attention_mask: (B or 1, 1, S, S) bool, True = attends → (B, S, H)."""
        config = self.config
        batch, length, _ = hidden_states.shape
        turn = rotate_neighbours if config.rope_interleave else rotate
        query = self.project_query(hidden_states).view(batch, length, -1, config.qk_head_dim).transpose(1, 2)
        query_nope, query_rope = torch.split(query, [config.qk_nope_head_dim, config.qk_rope_head_dim], dim=-1)
        latent, key_rope = self.kv_a_proj_with_mqa(hidden_states).split(
            [config.kv_lora_rank, config.qk_rope_head_dim], dim=-1
        )
        by_head = (batch, length, -1, config.qk_nope_head_dim + config.v_head_dim)
        key_value = self.kv_b_proj(self.kv_a_layernorm(latent)).view(by_head).transpose(1, 2)
        key_nope, value = key_value.split([config.qk_nope_head_dim, config.v_head_dim], dim=-1)
        key_rope = turn(key_rope[:, None], *position_embeddings).expand(-1, config.num_attention_heads, -1, -1)
        mixed = mix_values(
            torch.cat([query_nope, turn(query_rope, *position_embeddings)], dim=-1),
            torch.cat([key_nope, key_rope], dim=-1),
            value,
            attention_mask,
            scaling=self.scaling,
            attention=self.attention,
            accumulate=self.accumulate,
        )
        output: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return output

    def project_query(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, S, H) → (B, S, heads · qk_head_dim), through a latent of its own where the config has one."""
        projected: torch.Tensor = (
            self.q_proj(hidden_states)
            if self.config.q_lora_rank is None
            else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        )
        return projected


def scale_scores(config: DeepseekV3Config) -> float:
    """1 / √d, times yarn's temperature squared: both released files scale the scores, not cos and sin."""
    scale = 1.0 / math.sqrt(config.qk_head_dim)
    if config.rope.rope_type == "default" or not config.rope.mscale_all_dim:
        return scale
    return scale * yarn_temperature(config.rope.factor, config.rope.mscale_all_dim) ** 2


class DeepseekV3Router(nn.Module):
    """Sigmoid scores; a bias that no optimizer trains takes part in the choice only, not in the weights.

    The logits and all that follows are in `accumulate`, as in the released modeling file.
    """

    e_score_correction_bias: torch.Tensor

    def __init__(self, config: DeepseekV3Config, *, accumulate: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.accumulate = accumulate
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.empty(config.n_routed_experts))

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens, h) → logits (tokens, E), weights and indices of the chosen (tokens, k)."""
        logits = F.linear(hidden_states.to(self.accumulate), self.weight.to(self.accumulate))
        scores = torch.sigmoid(logits)
        biased = scores + self.e_score_correction_bias
        _, indices = torch.topk(self.keep_best_groups(biased), self.config.num_experts_per_tok, dim=-1)
        weights = scores.gather(-1, indices)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return logits, weights * self.config.routed_scaling_factor, indices

    def keep_best_groups(self, biased: torch.Tensor) -> torch.Tensor:
        """(tokens, E) scores, −∞ outside each token's `topk_group` best groups."""
        by_group = biased.view(biased.shape[0], self.config.n_group, -1)
        group_scores = by_group.topk(GROUP_SCORE_EXPERTS, dim=-1).values.sum(dim=-1)
        best = group_scores.topk(self.config.topk_group, dim=-1).indices
        kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, best, True)
        return by_group.masked_fill(~kept[..., None], -math.inf).flatten(-2)


class DeepseekV3Moe(nn.Module):
    """Σ over the chosen experts of weight · expert(x), and the shared experts, which see every token."""

    def __init__(self, config: DeepseekV3Config, *, accumulate: torch.dtype) -> None:
        super().__init__()
        hidden, wide = config.hidden_size, config.moe_intermediate_size
        self.experts = Experts(config.n_routed_experts, hidden_size=hidden, intermediate_size=wide)
        self.gate = DeepseekV3Router(config, accumulate=accumulate)
        self.shared_experts = GatedMLP(hidden, wide * config.n_shared_experts)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, S, h) → (B, S, h)."""
        tokens = hidden_states.flatten(0, 1)
        _, weights, indices = self.gate(tokens)
        routed: torch.Tensor = self.experts(tokens, indices, weights)
        output: torch.Tensor = routed.view_as(hidden_states) + self.shared_experts(hidden_states)
        return output


def build(config: DeepseekV3Config, *, attention: Attention, accumulate: torch.dtype) -> PlainCausalLM:
    """A deepseek_v3 decoder with its head; the first layers are dense."""
    norm = partial(RMSNorm, config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
    layers = [
        DecoderLayer(
            self_attn=LatentAttention(config, attention=attention, accumulate=accumulate),
            mlp=DeepseekV3Moe(config, accumulate=accumulate)
            if layer >= config.first_k_dense_replace
            else GatedMLP(config.hidden_size, config.intermediate_size),
            norm=norm,
        )
        for layer in range(config.num_hidden_layers)
    ]
    decoder = Decoder(
        embed_tokens=nn.Embedding(config.vocab_size, config.hidden_size),
        layers=layers,
        norm=norm(),
        rotary_emb=RotaryEmbedding(config.rope, head_dim=config.qk_rope_head_dim, accumulate=accumulate),
    )
    return PlainCausalLM(config, decoder, accumulate=accumulate)
