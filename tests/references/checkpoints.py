"""Small checkpoints with weights that matter: norms off 1, biases off 0, attention that is far from uniform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

VOCAB = 61

DENSE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LATENT: dict[str, Any] = {
    **{name: value for name, value in DENSE.items() if name != "head_dim"},
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
LINEAR: dict[str, Any] = {
    **DENSE,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
WINDOW: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": DENSE,
    "qwen3": DENSE,
    "llama": DENSE,
    "mistral": {**DENSE, "sliding_window": None},
    "gemma3_text": {**DENSE, **WINDOW, "tie_word_embeddings": True, "query_pre_attn_scalar": 16},
    "qwen3_moe": {**DENSE, **EXPERTS, "norm_topk_prob": True, "output_router_logits": True},
    "deepseek_v3": LATENT,
    "deepseek_v32": {**LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    "gpt_oss": {**DENSE, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        **DENSE,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
    "qwen3_next": {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": LINEAR,
}


def build_model(family: str, **settings: Any) -> nn.Module:
    """A float32 transformers model of `family` with non-degenerate weights; settings override those of FAMILIES."""
    config = transformers.AutoConfig.for_model(family, **{**FAMILIES[family], **settings})
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    nn.Module.float(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.normal_(centre, 0.3, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.3, generator=generator)
    return model


def save_checkpoint(directory: Path, family: str, **settings: Any) -> Path:
    """Save such a model as an ordinary checkpoint and return its directory."""
    model: Any = build_model(family, **settings)
    model.save_pretrained(directory)
    return directory


def draw_batch(*, rows: int = 2, length: int = 24) -> torch.Tensor:
    """Token ids (rows, length) without the padding id."""
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))
