"""config.json of a deepseek_v3 checkpoint, by the meaning that DeepSeek's released code gives its settings.

Source: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/configuration_deepseek.py and modeling_deepseek.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from checks.errors import BadRequest
from checks.references.plain.config import (
    PlainConfig,
    read_common,
    read_number,
    read_size,
    read_top_k,
    refuse_other_activation,
)
from checks.references.plain.rope import RopeSettings, UnsupportedModel, yarn_temperature

ONLY = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1}
"""Settings of the released config that have one value in every published deepseek_v3 model."""

LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class DeepseekV3Config(PlainConfig):
    """Sizes in dimensions a head; `q_lora_rank` None: queries straight from the hidden state; ranks are latents'."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    first_k_dense_replace: int
    num_nextn_predict_layers: int

    @property
    def qk_head_dim(self) -> int:
        """Dimensions of a query or key, the turned ones included."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def ignores(self, tensor: str) -> bool:
        """The layers that predict further tokens are stored behind the decoder's last one."""
        match = LAYER.match(tensor)
        further = range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers)
        return super().ignores(tensor) or (match is not None and int(match[1]) in further)

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], *, file: str = "config.json") -> Self:
        """Read the parsed content of config.json; raises as `PlainConfig.from_json`."""
        refuse_other_activation(raw)
        refuse_unpublished(raw)
        common = read_common(raw, file, head_dim=read_size(raw, "qk_rope_head_dim", file))
        heads, key_heads = common["num_attention_heads"], common["num_key_value_heads"]
        if heads != key_heads:
            found = f"num_key_value_heads is {key_heads}, and latent attention gives each of {heads} heads its own key"
            raise BadRequest(file, found, f"set it to {heads}")
        sizes: dict[str, Any] = {name: read_size(raw, name, file) for name in LATENT_SIZES}
        check_groups(sizes, read_top_k(raw, sizes["n_routed_experts"], file), file)
        common["rope"] = settle_rope(common["rope"])
        return cls(
            **common,
            mlp_bias=False,
            **sizes,
            q_lora_rank=None if raw.get("q_lora_rank") is None else read_size(raw, "q_lora_rank", file),
            rope_interleave=bool(raw.get("rope_interleave", True)),
            num_experts_per_tok=read_top_k(raw, sizes["n_routed_experts"], file),
            norm_topk_prob=bool(raw.get("norm_topk_prob", True)),
            routed_scaling_factor=read_number(raw, "routed_scaling_factor", None, file),
            first_k_dense_replace=read_index(raw, "first_k_dense_replace", file),
            num_nextn_predict_layers=read_index(
                {"num_nextn_predict_layers": 0, **raw}, "num_nextn_predict_layers", file
            ),
        )


LATENT_SIZES = (
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "moe_intermediate_size",
)


def read_index(raw: Mapping[str, Any], name: str, file: str) -> int:
    """The whole number from 0 under `name`; raises BadRequest naming file and field."""
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadRequest(file, f"{name} is {value!r}", "give a whole number from 0")
    return value


def refuse_unpublished(raw: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for a value that the released code computes otherwise, or not at all."""
    for name, only in ONLY.items():
        if raw.get(name, only) not in (None, only):
            raise UnsupportedModel(f"{name} {raw[name]!r}: the definition has {only!r}")
    if raw.get("norm_topk_prob", True) and raw.get("num_experts_per_tok") == 1:
        raise UnsupportedModel(
            "num_experts_per_tok 1 beside norm_topk_prob: the two released files differ on whether one expert's weight "
            "is normalised"
        )
    stated = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if stated.get("attention_factor") is not None or not stated.get("truncate", True):
        raise UnsupportedModel("attention_factor and truncate of rope settings: the released code knows neither")


def settle_rope(rope: RopeSettings) -> RopeSettings:
    """Yarn's factor on cos and sin as the released code has it: mscale is 1 and mscale_all_dim 0 unless stated."""
    if rope.rope_type != "yarn":
        return rope
    mscale = 1.0 if rope.mscale is None else rope.mscale
    factor = yarn_temperature(rope.factor, mscale) / yarn_temperature(rope.factor, rope.mscale_all_dim or 0.0)
    return replace(rope, attention_factor=factor)


def check_groups(sizes: Mapping[str, int], top_k: int, file: str) -> None:
    """Raise BadRequest where experts do not divide into groups that hold as many as are chosen."""
    experts, groups, chosen = sizes["n_routed_experts"], sizes["n_group"], sizes["topk_group"]
    if experts % groups or experts // groups < 2:
        found = f"n_routed_experts {experts} does not divide into n_group {groups} groups of at least two"
        raise BadRequest(file, found, "correct one of them")
    if chosen > groups or top_k > chosen * (experts // groups):
        found = f"topk_group {chosen} of {groups} groups does not hold num_experts_per_tok {top_k} experts"
        raise BadRequest(file, found, "correct one of them")
