"""Megatron-core's GPTModel as Miles trains it: Transformer Engine's layers on sequences that lie one after the other.

Run by `train.py` in the framework's environment.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional


def load(module: str) -> Any:
    """A module of the framework, which has no types."""
    return importlib.import_module(module)


def build(config: dict[str, Any]) -> Any:
    """The model that the checkpoint's config.json describes, in float32."""
    told = json.loads((Path(config["model"]) / "config.json").read_text(encoding="utf-8"))
    normed = told["model_type"].startswith("qwen3")
    settings: dict[str, Any] = {
        "num_layers": told["num_hidden_layers"],
        "hidden_size": told["hidden_size"],
        "ffn_hidden_size": told["intermediate_size"],
        "num_attention_heads": told["num_attention_heads"],
        "num_query_groups": told["num_key_value_heads"],
        "kv_channels": told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"],
        "normalization": "RMSNorm",
        "layernorm_epsilon": told["rms_norm_eps"],
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": told["model_type"] == "qwen2",
        "qk_layernorm": normed,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tensor_model_parallel_size": config["tp"],
        "context_parallel_size": config["cp"],
        "sequence_parallel": config["tp"] > 1,
        "params_dtype": torch.float32,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # the only one that takes sequences of several lengths
        "calculate_per_token_loss": config["miles"]["calculate_per_token_loss"],
        "use_cpu_initialization": True,
        "perform_initialization": True,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "apply_rope_fusion": False,
        "attention_softmax_in_fp32": True,
    }
    if config["gradient_checkpointing"]:
        settings |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    specs = load("megatron.core.models.gpt.gpt_layer_specs")
    rotary = told.get("rope_parameters") or {}
    model = load("megatron.core.models.gpt").GPTModel(
        config=load("megatron.core.transformer").TransformerConfig(**settings),
        transformer_layer_spec=specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=normed),
        vocab_size=told["vocab_size"],
        max_sequence_length=told["max_position_embeddings"],
        parallel_output=True,
        share_embeddings_and_output_weights=bool(told.get("tie_word_embeddings")),
        position_embedding_type="rope",
        rotary_base=int(rotary.get("rope_theta", told.get("rope_theta", 10000))),
    )
    return model.float()
