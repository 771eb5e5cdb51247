"""config.json of a llama or qwen3 checkpoint, read by its published meaning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.references.plain.rope import RopeSettings, UnsupportedModel, read_rope

FAMILIES = ("llama", "qwen3")

QWEN3_HEAD_DIM = 128
"""Head size of every published Qwen3 model, whatever its width (arXiv:2505.09388)."""

DEFAULT_RMS_NORM_EPS = 1e-6

NEUTRAL = {"attention_multiplier": None, "residual_multiplier": 1, "embedding_multiplier": 1, "logits_scaling": 1}
"""Settings of related families; a value other than the neutral one is another model."""


@dataclass(frozen=True)
class PlainConfig:
    """The settings that define a llama or qwen3 decoder."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSettings
    attention_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    max_position_embeddings: int

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised by head, as in qwen3."""
        return self.model_type == "qwen3"

    @classmethod
    def from_json(cls, path: Path) -> PlainConfig:
        """Read config.json (or the directory that holds it).

        Raises BadRequest for a file that cannot be read or lacks a size, UnsupportedModel for a model that this
        definition does not cover.
        """
        file = path / "config.json" if path.is_dir() else path
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadRequest(
                str(file), f"cannot be read as JSON ({error})", "give a checkpoint's config.json"
            ) from error
        if not isinstance(raw, dict):
            raise BadRequest(str(file), "holds no JSON object", "give a checkpoint's config.json")
        return cls.from_mapping(raw, file=str(file))

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, file: str = "config.json") -> PlainConfig:
        """Read the parsed content of config.json; raises like `from_json`."""
        family = raw.get("model_type")
        if family not in FAMILIES:
            raise UnsupportedModel(f"model_type {family!r} is none of {', '.join(FAMILIES)}")
        refuse_other_definitions(raw)
        sizes = {name: read_size(raw, name, file) for name in SIZES}
        heads = sizes["num_attention_heads"]
        key_value_heads = read_count(raw, "num_key_value_heads", heads, file)
        if heads % key_value_heads:
            raise BadRequest(
                file,
                f"num_attention_heads {heads} is no multiple of num_key_value_heads {key_value_heads}",
                "correct it",
            )
        head_dim = read_count(
            raw, "head_dim", QWEN3_HEAD_DIM if family == "qwen3" else sizes["hidden_size"] // heads, file
        )
        if head_dim % 2:
            raise BadRequest(file, f"head_dim {head_dim} is odd, and rotary embedding pairs dimensions", "correct it")
        return cls(
            model_type=family,
            **sizes,
            num_key_value_heads=key_value_heads,
            head_dim=head_dim,
            rms_norm_eps=float(raw.get("rms_norm_eps", DEFAULT_RMS_NORM_EPS)),
            rope=read_rope(raw, max_position_embeddings=sizes["max_position_embeddings"], file=file),
            attention_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)) and family == "llama",
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def read_size(raw: Mapping[str, Any], name: str, file: str) -> int:
    """The positive integer under `name`; raises BadRequest naming file and field."""
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequest(file, f"{name} is {value!r}", "give a positive whole number")
    return value


def read_count(raw: Mapping[str, Any], name: str, default: int, file: str) -> int:
    """Like `read_size`; absent or null means `default`."""
    return default if raw.get(name) is None else read_size(raw, name, file)


def refuse_other_definitions(raw: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel where a setting asks for mathematics that this definition does not hold."""
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r}: the definition has silu")
    windowed = uses_sliding_window(raw)
    if windowed:
        raise UnsupportedModel(f"{windowed}: sliding-window attention is not in the definition")
    if raw.get("attention_dropout"):
        raise UnsupportedModel(f"attention_dropout {raw['attention_dropout']}: a random mask cannot be referenced")
    if raw.get("quantization_config"):
        raise UnsupportedModel("quantization_config: quantised weights are not in the definition")
    for name, neutral in NEUTRAL.items():
        if raw.get(name, neutral) not in (None, neutral):
            raise UnsupportedModel(f"{name} {raw[name]}: not in the definition of {', '.join(FAMILIES)}")


def uses_sliding_window(raw: Mapping[str, Any]) -> str | None:
    """The setting by which some layer attends to a window only, or None."""
    types = raw.get("layer_types")
    if types is not None:
        other = sorted({str(kind) for kind in types} - {"full_attention"})
        return f"layer_types {other}" if other else None
    window = raw.get("sliding_window")
    if window is None or (raw["model_type"] == "qwen3" and not raw.get("use_sliding_window", False)):
        return None
    if raw["model_type"] == "qwen3" and raw.get("max_window_layers", 28) >= raw.get("num_hidden_layers", 0):
        return None
    return f"sliding_window {window}"
