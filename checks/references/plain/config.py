"""config.json of a checkpoint, read by its published meaning: what all families share, and llama and qwen3 whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from checks.errors import BadRequest
from checks.references.plain.rope import DEFAULT_THETA, RopeSettings, UnsupportedModel, read_rope

DENSE = ("llama", "qwen3")

QWEN3_HEAD_DIM = 128
"""Head size of every published Qwen3 model, whatever its width (arXiv:2505.09388)."""

DEFAULT_RMS_NORM_EPS = 1e-6

NEUTRAL = {"attention_multiplier": None, "residual_multiplier": 1, "embedding_multiplier": 1, "logits_scaling": 1}
"""Settings of related families; a value other than the neutral one is another model."""

DERIVED = "rotary_emb.inv_freq"
"""Some early llama checkpoints carry this buffer, which follows from the config."""

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class PlainConfig:
    """The settings that define a llama or qwen3 decoder; other families add theirs.

    `head_dim`: the dimensions that rotary embedding turns, which are the whole head in all families but deepseek_v3.
    """

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
        return self.model_type in ("qwen3", "qwen3_moe")

    def ignores(self, tensor: str) -> bool:
        """Whether a stored tensor of this name is no part of the decoder."""
        return tensor.endswith(DERIVED)

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Read config.json (or the directory that holds it).

        Raises BadRequest for a file that cannot be read or lacks a size, UnsupportedModel for a model that this
        definition does not cover.
        """
        raw, file = read_json(path)
        return cls.from_mapping(raw, file=file)

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, file: str = "config.json") -> Self:
        """Read the parsed content of config.json; raises like `from_json`."""
        family = raw.get("model_type")
        if family not in DENSE:
            raise UnsupportedModel(f"model_type {family!r} is none of {', '.join(DENSE)}")
        refuse_other_activation(raw)
        windowed = uses_sliding_window(raw)
        if windowed:
            raise UnsupportedModel(f"{windowed}: sliding-window attention is not in the definition")
        hidden, heads = read_size(raw, "hidden_size", file), read_size(raw, "num_attention_heads", file)
        head_dim = read_count(raw, "head_dim", QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads, file)
        mlp_bias = bool(raw.get("mlp_bias", False)) and family == "llama"
        return cls(**read_common(raw, file, head_dim=head_dim), mlp_bias=mlp_bias)


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def read_json(path: Path) -> tuple[Mapping[str, Any], str]:
    """The parsed config.json (or that of the directory) and its name; raises BadRequest where it cannot be read."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(str(file), f"cannot be read as JSON ({error})", "give a checkpoint's config.json") from error
    if not isinstance(raw, dict):
        raise BadRequest(str(file), "holds no JSON object", "give a checkpoint's config.json")
    return raw, str(file)


def read_common(
    raw: Mapping[str, Any],
    file: str,
    *,
    head_dim: int,
    default_theta: float = DEFAULT_THETA,
    default_eps: float = DEFAULT_RMS_NORM_EPS,
    default_bias: bool = False,
    default_tied: bool = False,
) -> dict[str, Any]:
    """The fields of PlainConfig that every family has, `mlp_bias` apart; raises as `PlainConfig.from_json`."""
    refuse_other_definitions(raw)
    sizes = {name: read_size(raw, name, file) for name in SIZES}
    heads = sizes["num_attention_heads"]
    key_value_heads = read_count(raw, "num_key_value_heads", heads, file)
    if heads % key_value_heads:
        found = f"num_attention_heads {heads} is no multiple of num_key_value_heads {key_value_heads}"
        raise BadRequest(file, found, "correct it")
    if head_dim % 2:
        raise BadRequest(file, f"head_dim {head_dim} is odd, and rotary embedding pairs dimensions", "correct it")
    positions = sizes["max_position_embeddings"]
    return {
        "model_type": raw["model_type"],
        **sizes,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "rms_norm_eps": float(raw.get("rms_norm_eps", default_eps)),
        "rope": read_rope(raw, max_position_embeddings=positions, file=file, default_theta=default_theta),
        "attention_bias": bool(raw.get("attention_bias", default_bias)),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", default_tied)),
    }


def read_size(raw: Mapping[str, Any], name: str, file: str) -> int:
    """The positive integer under `name`; raises BadRequest naming file and field."""
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequest(file, f"{name} is {value!r}", "give a positive whole number")
    return value


def read_count(raw: Mapping[str, Any], name: str, default: int, file: str) -> int:
    """Like `read_size`; absent or null means `default`."""
    return default if raw.get(name) is None else read_size(raw, name, file)


def read_number(raw: Mapping[str, Any], name: str, default: float | None, file: str) -> float:
    """The positive number under `name`, `default` where it is absent; raises BadRequest naming file and field."""
    value = default if raw.get(name) is None else raw[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise BadRequest(file, f"{name} is {value!r}", "give a positive number")
    return float(value)


def read_top_k(raw: Mapping[str, Any], experts: int, file: str) -> int:
    """num_experts_per_tok, at most the number of experts; raises BadRequest."""
    top_k = read_size(raw, "num_experts_per_tok", file)
    if top_k > experts:
        raise BadRequest(file, f"num_experts_per_tok {top_k} exceeds the {experts} experts", "correct it")
    return top_k


def read_windows(raw: Mapping[str, Any], types: Sequence[str], file: str) -> tuple[int | None, ...]:
    """Each layer's window in tokens, its own included, None where it sees all; `types`: a layer each.

    Raises BadRequest for a list of another length or a sliding layer without a window, UnsupportedModel for a type of
    layer that no definition here has.
    """
    layers = read_size(raw, "num_hidden_layers", file)
    if len(types) != layers:
        raise BadRequest(file, f"layer_types names {len(types)} of {layers} layers", "name each layer's type")
    other = sorted({str(kind) for kind in types} - {SLIDING, FULL})
    if other:
        raise UnsupportedModel(f"layer_types {other}: the definition has {SLIDING} and {FULL}")
    return tuple(read_size(raw, "sliding_window", file) if kind == SLIDING else None for kind in types)


def refuse_other_activation(raw: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for an activation other than silu."""
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r}: the definition has silu")


def refuse_other_definitions(raw: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel where a setting asks for mathematics that no definition here holds."""
    if raw.get("attention_dropout"):
        raise UnsupportedModel(f"attention_dropout {raw['attention_dropout']}: a random mask cannot be referenced")
    if raw.get("quantization_config"):
        raise UnsupportedModel("quantization_config: quantised weights are not in the definition")
    for name, neutral in NEUTRAL.items():
        if raw.get(name, neutral) not in (None, neutral):
            raise UnsupportedModel(f"{name} {raw[name]}: not in the definition of {raw['model_type']}")


def uses_sliding_window(raw: Mapping[str, Any]) -> str | None:
    """The setting by which some layer of a dense model attends to a window only, or None."""
    types = raw.get("layer_types")
    if types is not None:
        other = sorted({str(kind) for kind in types} - {FULL})
        return f"layer_types {other}" if other else None
    window = raw.get("sliding_window")
    if window is None or (raw["model_type"] == "qwen3" and not raw.get("use_sliding_window", False)):
        return None
    if raw["model_type"] == "qwen3" and raw.get("max_window_layers", 28) >= raw.get("num_hidden_layers", 0):
        return None
    return f"sliding_window {window}"
