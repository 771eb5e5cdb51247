"""The twelve tiny families: real architectures at a size that trains a step in milliseconds on one core."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

VOCAB_SIZE = 512
"""256 bytes, three special tokens and 253 merges; small, so that the head does not outweigh the layers"""
POSITIONS = 2048

_DENSE: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_ROUTED: Mapping[str, Any] = {
    **_DENSE,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    # The run spec's objective is the mean over the counted tokens; an auxiliary loss would be a second objective.
    "router_aux_loss_coef": 0.0,
    "output_router_logits": False,
}
_GROUP_ROUTED: Mapping[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
}
# Multi-head latent attention has no GQA: every head gets its own key from the latent.
_LATENT: Mapping[str, Any] = {
    **{key: value for key, value in _DENSE.items() if key != "head_dim"},
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    **_GROUP_ROUTED,
}
_LINEAR: Mapping[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
# A window shorter than the usual sequence, so that a wrong window shows.
_WINDOWED: Mapping[str, Any] = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}

FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen2": _DENSE,
        "qwen3": _DENSE,
        "llama": _DENSE,
        "mistral": {**_DENSE, "sliding_window": None},
        "gemma3_text": {**_DENSE, "tie_word_embeddings": True, "query_pre_attn_scalar": 16, **_WINDOWED},
        "qwen3_moe": {**_ROUTED, "decoder_sparse_step": 1, "norm_topk_prob": True},
        "deepseek_v3": _LATENT,
        "deepseek_v32": {**_LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 64},
        "gpt_oss": {
            **_DENSE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.0,
            "output_router_logits": False,
            # As published, with a factor that fits 2,048 positions.
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": POSITIONS // 4,
            },
            **_WINDOWED,
        },
        "glm4_moe": {**_DENSE, **_GROUP_ROUTED, "n_group": 1, "partial_rotary_factor": 0.5, "use_qk_norm": True},
        "qwen3_next": {**_ROUTED, "shared_expert_intermediate_size": 32, **_LINEAR},
        "qwen3_5_text": {**_DENSE, **_LINEAR},
    }
)
"""family (Hugging Face `model_type`) → the settings in which the tiny model differs from the family's defaults"""

ALIASES: Mapping[str, str] = MappingProxyType({"gemma3": "gemma3_text"})
"""family of a config with more than a language model → the family of its language model"""

EAGER_ONLY = frozenset({"gpt_oss"})
"""families whose attention sinks no sdpa kernel can express (transformers raises for them)"""
