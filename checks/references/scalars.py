"""The scalar settings that a checkpoint's config asks of each module, to be compared with those in force in a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from checks.errors import BadRequest
from checks.references.hf import recompute_buffers
from checks.references.plain import PlainConfig, UnsupportedModel, inverse_frequencies

Scalar = int | float | str | bool | None | list[float]
Scalars = Mapping[str, Mapping[str, Scalar]]
"""Module path → attribute → value, in transformers' names."""

RUN_STATE = frozenset({"training", "gradient_checkpointing", "max_seq_len_cached", "name_or_path"})
"""Attributes that a run sets for itself, whatever the config asks."""


def expected_scalars(checkpoint: Path) -> Scalars:
    """What config.json asks: by definition for llama and qwen3, else read off transformers' model built from it.

    Frequencies are computed in float64; a run holds them in float32. The second kind is blind to transformers' own
    reading of the config. Raises BadRequest for a config that neither can read.
    """
    try:
        config = PlainConfig.from_json(checkpoint)
    except UnsupportedModel:
        return read_scalars(build_empty(checkpoint))
    return define_scalars(config)


def define_scalars(config: PlainConfig) -> Scalars:
    """The settings of a llama or qwen3 decoder, from its definition."""
    norm: dict[str, Scalar] = {"variance_epsilon": config.rms_norm_eps}
    attention: dict[str, Scalar] = {
        "head_dim": config.head_dim,
        "num_key_value_groups": config.num_attention_heads // config.num_key_value_heads,
        "scaling": config.head_dim**-0.5,
        "attention_dropout": 0.0,
        "is_causal": True,
    }
    frequencies = inverse_frequencies(config.rope, head_dim=config.head_dim, dtype=torch.float64)
    scalars: dict[str, Mapping[str, Scalar]] = {
        "model.norm": norm,
        "model.rotary_emb": {
            "rope_type": config.rope.rope_type,
            "inv_freq": frequencies.tolist(),
            "attention_scaling": config.rope.attention_scaling,
        },
    }
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        scalars[f"{layer}.input_layernorm"] = norm
        scalars[f"{layer}.post_attention_layernorm"] = norm
        scalars[f"{layer}.self_attn"] = {**attention, "layer_idx": index}
        if config.qk_norm:
            scalars[f"{layer}.self_attn.q_norm"] = norm
            scalars[f"{layer}.self_attn.k_norm"] = norm
    return scalars


def build_empty(checkpoint: Path) -> nn.Module:
    """Transformers' model of a config, without weights; buffers that follow from the config hold float64 values."""
    import transformers  # takes seconds, and only a model needs it

    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        found = f"transformers cannot build a model of it ({first})"
        raise BadRequest(
            str(checkpoint / "config.json"), found, "give the config of a causal language model"
        ) from error
    recompute_buffers(model)
    return model


def read_scalars(model: nn.Module) -> Scalars:
    """The public scalar attributes of every module, and its buffers up to one dimension that no checkpoint holds."""
    scalars: dict[str, Mapping[str, Scalar]] = {}
    for path, module in model.named_modules():
        found: dict[str, Scalar] = {
            name: value
            for name, value in vars(module).items()
            if not name.startswith("_") and name not in RUN_STATE and isinstance(value, int | float | str | None)
        }
        for name, buffer in module.named_buffers(recurse=False):
            if name in module._non_persistent_buffers_set and buffer.dim() <= 1 and not buffer.is_meta:
                found[name] = buffer.tolist()
        if found:
            scalars[path] = found
    return scalars
