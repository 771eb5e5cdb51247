"""Which families have a plain definition, and by which module each is read and built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from checks.references.plain import deepseek_v3, dense, gemma3, gpt_oss, qwen3_moe
from checks.references.plain.attention import Attention
from checks.references.plain.config import PlainConfig, read_json
from checks.references.plain.deepseek_v3_config import DeepseekV3Config
from checks.references.plain.modules import PlainCausalLM, check_attention
from checks.references.plain.rope import UnsupportedModel


@dataclass(frozen=True)
class Family:
    """How a family's config.json is read, and the model built from it."""

    config: type[PlainConfig]
    build: Callable[..., PlainCausalLM]


FAMILIES: Mapping[str, Family] = {
    "llama": Family(PlainConfig, dense.build),
    "qwen3": Family(PlainConfig, dense.build),
    "qwen3_moe": Family(qwen3_moe.Qwen3MoeConfig, qwen3_moe.build),
    "deepseek_v3": Family(DeepseekV3Config, deepseek_v3.build),
    "gpt_oss": Family(gpt_oss.GptOssConfig, gpt_oss.build),
    "gemma3_text": Family(gemma3.Gemma3Config, gemma3.build),
}
"""model_type → its definition"""


def read_config(path: Path) -> PlainConfig:
    """Read config.json (or that of a directory) as its family defines it; raises as `PlainConfig.from_json`."""
    raw, file = read_json(path)
    return find_family(raw).config.from_mapping(raw, file=file)


def find_family(raw: Mapping[str, Any]) -> Family:
    """The definition of a config's model_type; raises UnsupportedModel where there is none."""
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedModel(f"model_type {family!r} is none of {', '.join(FAMILIES)}")
    return FAMILIES[family]


def build_plain(config: PlainConfig, *, attention: Attention, accumulate: torch.dtype) -> PlainCausalLM:
    """The plain model of a config; raises BadRequest for an attention that plain models do not have."""
    check_attention(attention)
    return FAMILIES[config.model_type].build(config, attention=attention, accumulate=accumulate)
