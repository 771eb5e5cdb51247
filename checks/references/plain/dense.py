"""llama and qwen3, assembled from the shared modules (arXiv:2302.13971, arXiv:2505.09388)."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from checks.references.plain.attention import Attention
from checks.references.plain.config import PlainConfig
from checks.references.plain.modules import (
    Decoder,
    DecoderLayer,
    GatedMLP,
    PlainCausalLM,
    RMSNorm,
    RotaryEmbedding,
    SelfAttention,
)


def build(config: PlainConfig, *, attention: Attention, accumulate: torch.dtype) -> PlainCausalLM:
    """A llama or qwen3 decoder with its head."""
    norm = partial(RMSNorm, config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
    layers = [
        DecoderLayer(
            self_attn=SelfAttention(config, attention=attention, accumulate=accumulate),
            mlp=GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias),
            norm=norm,
        )
        for _ in range(config.num_hidden_layers)
    ]
    decoder = Decoder(
        embed_tokens=nn.Embedding(config.vocab_size, config.hidden_size),
        layers=layers,
        norm=norm(),
        rotary_emb=RotaryEmbedding(config.rope, head_dim=config.head_dim, accumulate=accumulate),
    )
    return PlainCausalLM(config, decoder, accumulate=accumulate)
