"""Rotary position embedding: settings, inverse frequencies with their scalings, and the rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from checks.errors import BadRequest

DEFAULT_THETA = 10_000.0
"""Base of the rotary frequencies where a config states none (arXiv:2104.09864, section 3.2.2)."""

YARN_BETA_FAST, YARN_BETA_SLOW = 32.0, 1.0
"""Rotations over the original context above which a dimension is kept, below which interpolated (arXiv:2309.00071)."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class UnsupportedModel(ValueError):
    """A model outside what the plain reference defines; `reason` names the setting."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no plain reference: {reason}.")
        self.reason = reason


@dataclass(frozen=True)
class RopeSettings:
    """How positions turn: type, base and the parameters of the type (those of other types stay None)."""

    rope_type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = YARN_BETA_FAST
    beta_slow: float = YARN_BETA_SLOW
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def attention_scaling(self) -> float:
        """Factor on cos and sin: yarn's √(1/t), else 1 (arXiv:2309.00071, equation 22)."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_temperature(self.factor, self.mscale) / yarn_temperature(self.factor, self.mscale_all_dim)
        return yarn_temperature(self.factor, 1.0)


def yarn_temperature(factor: float, mscale: float) -> float:
    """0.1 · mscale · ln(factor) + 1, and 1 where nothing is extended."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def read_rope(
    raw: Mapping[str, Any], *, max_position_embeddings: int, file: str, default_theta: float = DEFAULT_THETA
) -> RopeSettings:
    """Rotary settings from `rope_parameters`, or from `rope_scaling` beside `rope_theta`.

    Raises UnsupportedModel for an unknown type or partial rotation, BadRequest for a parameter that is missing.
    """
    stated = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    theta = stated.get("rope_theta") or raw.get("rope_theta") or default_theta
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(f"rope type {kind!r} is none of {', '.join(ROPE_TYPES)}")
    partial = stated.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise UnsupportedModel(f"partial_rotary_factor {partial}: the definition turns every dimension")
    if kind == "default":
        return RopeSettings(theta=float(theta))
    original = raw.get("original_max_position_embeddings") or stated.get("original_max_position_embeddings")
    original = original or max_position_embeddings
    factor = stated.get("factor")
    if factor is None and kind == "yarn":
        factor = max_position_embeddings / original
    required: dict[str, Any] = {"factor": factor}
    if kind == "llama3":
        required |= {name: stated.get(name) for name in ("low_freq_factor", "high_freq_factor")}
    for name, value in required.items():
        if value is None:
            raise BadRequest(file, f"rope type {kind} lacks {name}", "state it in rope_parameters")
    return RopeSettings(
        rope_type=kind,
        theta=float(theta),
        factor=float(required["factor"]),
        original_max_position_embeddings=int(original),
        low_freq_factor=stated.get("low_freq_factor"),
        high_freq_factor=stated.get("high_freq_factor"),
        beta_fast=float(stated.get("beta_fast") or YARN_BETA_FAST),
        beta_slow=float(stated.get("beta_slow") or YARN_BETA_SLOW),
        attention_factor=stated.get("attention_factor"),
        mscale=stated.get("mscale"),
        mscale_all_dim=stated.get("mscale_all_dim"),
        truncate=bool(stated.get("truncate", True)),
    )


def inverse_frequencies(rope: RopeSettings, *, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Radians a position for each pair of dimensions: (head_dim / 2,) `dtype`, computed in `dtype`.

    theta^(−2i/d) (arXiv:2104.09864), then scaled: linear divides all by the factor (position interpolation,
    arXiv:2306.15595); llama3 and yarn scale by wavelength.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=dtype) / head_dim
    frequencies = 1.0 / torch.tensor(rope.theta, dtype=dtype) ** exponents
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return scale_llama3(frequencies, rope)
    if rope.rope_type == "yarn":
        return scale_yarn(frequencies, rope, head_dim=head_dim)
    return frequencies


def scale_llama3(frequencies: torch.Tensor, rope: RopeSettings) -> torch.Tensor:
    """Llama 3.1's scaling: waves shorter than L/high stay, longer than L/low are stretched, linear between.

    Source: `apply_scaling` in https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py
    """
    assert rope.original_max_position_embeddings is not None
    assert rope.low_freq_factor is not None
    assert rope.high_freq_factor is not None
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / rope.factor


def scale_yarn(frequencies: torch.Tensor, rope: RopeSettings, *, head_dim: int) -> torch.Tensor:
    """YaRN's "NTK by parts": a ramp over the dimension index between those that turn beta_fast and beta_slow times.

    The paper (arXiv:2309.00071, section 3.2) states the ramp over rotations; its authors' code, which trained the
    released models and which every implementation follows, has it over the index:
    https://github.com/jquesnelle/yarn/blob/master/scaled_rope/LlamaYaRNScaledRotaryEmbedding.py
    """
    assert rope.original_max_position_embeddings is not None
    low = index_turning(rope.beta_fast, rope, head_dim=head_dim)
    high = index_turning(rope.beta_slow, rope, head_dim=head_dim)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the authors' guard against a ramp of no width
    index = torch.arange(head_dim // 2, dtype=frequencies.dtype)
    interpolate = ((index - low) / (high - low)).clamp(0.0, 1.0)
    return interpolate * frequencies / rope.factor + (1 - interpolate) * frequencies


def index_turning(rotations: float, rope: RopeSettings, *, head_dim: int) -> float:
    """The (fractional) pair index that turns `rotations` times over the original context."""
    assert rope.original_max_position_embeddings is not None
    wavelength_ratio = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
    return head_dim * math.log(wavelength_ratio) / (2 * math.log(rope.theta))


def rotate_neighbours(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (2i, 2i + 1) of `states` (B, heads, S, d) by its angle; cos, sin: (B, 1, S, d/2).

    The pairing of arXiv:2104.09864, equation 34, as DeepSeek's checkpoints hold it.
    """
    first, second = states[..., 0::2], states[..., 1::2]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.flatten(-2)


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + d/2) of `states` (B, heads, S, d) by its angle; cos, sin: (B, 1, S, d/2).

    Checkpoints in the Hugging Face layout pair the two halves, not neighbours: q_proj and k_proj are permuted so.
    """
    first, second = states.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
