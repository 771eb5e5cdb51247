"""gemma3 text: scaled embeddings, norms by 1 + weight around both halves of a layer, local and global layers in turn.

Sources: arXiv:2503.19786, section 2; arXiv:2408.00118, section 2 (norms, soft caps); the released code,
https://github.com/google/gemma_pytorch/blob/main/gemma/model.py and config.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from checks.references.plain.attention import Attention, share_heads, softmax_where
from checks.references.plain.config import (
    FULL,
    SLIDING,
    PlainConfig,
    read_common,
    read_count,
    read_number,
    read_size,
    read_windows,
)
from checks.references.plain.modules import (
    Decoder,
    DecoderLayer,
    GatedMLP,
    PlainCausalLM,
    RMSNorm,
    RotaryEmbedding,
    SelfAttention,
    Turn,
)
from checks.references.plain.rope import RopeSettings, UnsupportedModel, read_rope

GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
"""Rotary bases of global and local layers (arXiv:2503.19786, section 2)."""

PATTERN = 6
"""Five local layers to one global one, beginning with local ones (the same)."""

HEAD_DIM = 256
ACTIVATION = "gelu_pytorch_tanh"


@dataclass(frozen=True)
class Gemma3Config(PlainConfig):
    """`rope` is the global layers', `local_rope` that of layers with a window; a cap is None where there is none."""

    local_rope: RopeSettings
    query_pre_attn_scalar: float
    attn_logit_softcapping: float | None
    final_logit_softcapping: float | None
    sliding_windows: tuple[int | None, ...]

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, file: str = "config.json") -> Self:
        """Read the parsed content of config.json; raises as `PlainConfig.from_json`."""
        activation = raw.get("hidden_activation", ACTIVATION)
        if activation != ACTIVATION:
            raise UnsupportedModel(f"hidden_activation {activation!r}: the definition has {ACTIVATION}")
        if raw.get("use_bidirectional_attention"):
            raise UnsupportedModel("use_bidirectional_attention: the definition is causal")
        stated = state_rope(raw)
        read = partial(read_rope, max_position_embeddings=read_size(raw, "max_position_embeddings", file), file=file)
        head_dim = read_count(raw, "head_dim", HEAD_DIM, file)
        common = read_common({**raw, **stated[FULL]}, file, head_dim=head_dim, default_tied=True)
        return cls(
            **common,
            mlp_bias=False,
            local_rope=read(stated[SLIDING]),
            query_pre_attn_scalar=read_number(raw, "query_pre_attn_scalar", None, file),
            attn_logit_softcapping=read_cap(raw, "attn_logit_softcapping", file),
            final_logit_softcapping=read_cap(raw, "final_logit_softcapping", file),
            sliding_windows=read_windows(raw, read_types(raw, common["num_hidden_layers"], file), file),
        )


def state_rope(raw: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Layer type → its rotary settings, as `read_rope` takes them.

    Newer configs nest them by layer type; published ones have rope_theta and rope_scaling for the global layers beside
    rope_local_base_freq. Raises UnsupportedModel for settings that name no layer type.
    """
    nested = raw.get("rope_parameters") or {}
    if nested and not set(nested) <= {FULL, SLIDING}:
        raise UnsupportedModel("rope_parameters of gemma3 are not nested by layer type")
    full = {
        "rope_theta": raw.get("rope_theta") or GLOBAL_THETA,
        **(nested.get(FULL) or {}),
        **(raw.get("rope_scaling") or {}),
    }
    local = {"rope_theta": raw.get("rope_local_base_freq") or LOCAL_THETA, **(nested.get(SLIDING) or {})}
    return {kind: {"rope_scaling": None, "rope_parameters": each} for kind, each in ((FULL, full), (SLIDING, local))}


def read_types(raw: Mapping[str, Any], layers: int, file: str) -> list[str]:
    """Each layer's type: stated, or by the pattern that every n-th layer is global."""
    pattern = read_count(raw, "sliding_window_pattern", PATTERN, file)
    stated = raw.get("layer_types")
    return list(stated) if stated else [SLIDING if (layer + 1) % pattern else FULL for layer in range(layers)]


def read_cap(raw: Mapping[str, Any], name: str, file: str) -> float | None:
    """A soft cap, None where the config has none."""
    return None if raw.get(name) is None else read_number(raw, name, None, file)


def cap(values: torch.Tensor, limit: float | None) -> torch.Tensor:
    """limit · tanh(values / limit) (arXiv:2408.00118, section 2)."""
    return values if limit is None else limit * torch.tanh(values / limit)


class Gemma3RMSNorm(RMSNorm):
    """x / √(mean(x²) + eps) · (1 + weight), the product in `accumulate` too."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (self.normalise(hidden_states) * (1 + self.weight.to(self.accumulate))).to(hidden_states.dtype)


class ScaledEmbedding(nn.Embedding):
    """Embeddings times √hidden_size, which is rounded to their dtype first."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor(math.sqrt(self.embedding_dim), dtype=self.weight.dtype, device=self.weight.device)
        return super().forward(input_ids) * scale


class RotaryByType(nn.Module):
    """The position embeddings of global and of local layers."""

    def __init__(self, config: Gemma3Config, *, accumulate: torch.dtype) -> None:
        super().__init__()
        self.full_attention = RotaryEmbedding(config.rope, head_dim=config.head_dim, accumulate=accumulate)
        self.sliding_attention = RotaryEmbedding(config.local_rope, head_dim=config.head_dim, accumulate=accumulate)

    def forward(self, position_ids: torch.Tensor, dtype: torch.dtype) -> Mapping[str, Turn]:
        """(B, S) → layer type → cos, sin (B, 1, S, head_dim / 2)."""
        return {FULL: self.full_attention(position_ids, dtype), SLIDING: self.sliding_attention(position_ids, dtype)}


class Gemma3Attention(SelfAttention):
    """Scores over √query_pre_attn_scalar, capped where the config says so; queries and keys normalised by head."""

    def __init__(self, config: Gemma3Config, *, attention: Attention, accumulate: torch.dtype) -> None:
        super().__init__(config, attention=attention, accumulate=accumulate)
        self.scaling = 1.0 / math.sqrt(config.query_pre_attn_scalar)
        self.softcap = config.attn_logit_softcapping
        self.q_norm = Gemma3RMSNorm(config.head_dim, eps=config.rms_norm_eps, accumulate=accumulate)
        self.k_norm = Gemma3RMSNorm(config.head_dim, eps=config.rms_norm_eps, accumulate=accumulate)

    def mix(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """softmax(cap(q·k · scaling)) · v; torch's kernel has no cap, so with one there is one way to compute it."""
        if self.softcap is None:
            return super().mix(query, key, value, attention_mask)
        key, value = share_heads(key, query.shape[1]), share_heads(value, query.shape[1])
        scores = cap(query @ key.transpose(-1, -2) * self.scaling, self.softcap)
        return softmax_where(scores.to(self.accumulate), attention_mask).to(query.dtype) @ value


class Gemma3Layer(DecoderLayer):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(
        self,
        *,
        self_attn: nn.Module,
        mlp: nn.Module,
        norm: partial[Gemma3RMSNorm],
        sliding_window: int | None,
    ) -> None:
        super().__init__(self_attn=self_attn, mlp=mlp, norm=norm, sliding_window=sliding_window)
        self.layer_type = FULL if sliding_window is None else SLIDING
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm = norm()

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Mapping[str, Turn],
        attention_mask: torch.Tensor,
    ) -> torch.Tensor:
        turn = position_embeddings[self.layer_type]
        mixed = self.self_attn(self.input_layernorm(hidden_states), turn, attention_mask)
        hidden_states = hidden_states + self.post_attention_layernorm(mixed)
        fed = self.mlp(self.pre_feedforward_layernorm(hidden_states))
        output: torch.Tensor = hidden_states + self.post_feedforward_layernorm(fed)
        return output


class Gemma3CausalLM(PlainCausalLM):
    """The head's logits are capped where the config says so."""

    config: Gemma3Config

    def score_vocabulary(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return cap(super().score_vocabulary(hidden_states), self.config.final_logit_softcapping)


def build(config: Gemma3Config, *, attention: Attention, accumulate: torch.dtype) -> PlainCausalLM:
    """A gemma3 text decoder with its head."""
    norm = partial(Gemma3RMSNorm, config.hidden_size, eps=config.rms_norm_eps, accumulate=accumulate)
    layers = [
        Gemma3Layer(
            self_attn=Gemma3Attention(config, attention=attention, accumulate=accumulate),
            mlp=GatedMLP(config.hidden_size, config.intermediate_size, activation=nn.GELU(approximate="tanh")),
            norm=norm,
            sliding_window=window,
        )
        for window in config.sliding_windows
    ]
    decoder = Decoder(
        embed_tokens=ScaledEmbedding(config.vocab_size, config.hidden_size),
        layers=layers,
        norm=norm(),
        rotary_emb=RotaryByType(config, accumulate=accumulate),
    )
    return Gemma3CausalLM(config, decoder, accumulate=accumulate)
