"""Shrinking a config keeps what can go wrong in it, says what became of each setting, and refuses what it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from checks.errors import BadRequest
from checks.models import FAMILIES, resolve_model
from checks.models.checkpoint import read_config
from checks.models.shrinking import Change, complete_config, shrink_config
from checks.models.shrinking.attention import choose_heads
from checks.models.shrinking.layers import find_period, shortest_prefix
from checks.models.shrinking.positions import scale_original, share_out, spread
from checks.models.shrunk import plan_small, resolve_shrunk, write_small
from checks.models.tiny import count_parameters
from workers.cli import main

LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008],
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rope_theta": 500000.0,
}
DEEPSEEK: Mapping[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 163840,
    "vocab_size": 129280,
}
STRUCTURE = (
    *("layer_types", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"),
    *("sliding_window", "num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok", "n_group"),
    *("topk_group", "n_shared_experts", "first_k_dense_replace", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim"),
    *("qk_rope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim", "linear_num_key_heads", "vocab_size"),
    *("linear_num_value_heads", "linear_conv_kernel_dim", "partial_rotary_factor", "use_qk_norm", "norm_topk_prob"),
    *("query_pre_attn_scalar", "tie_word_embeddings", "pad_token_id", "eos_token_id", "bos_token_id"),
)


def shrink(config: Mapping[str, Any], **changed: Any) -> Mapping[str, Any]:
    return shrink_config({**config, **changed}).config


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_family_shrinks_to_one_of_the_same_structure(family: str) -> None:
    before = read_config(resolve_model(f"tiny:{family}").path)
    after = shrink(before)
    assert {name: after.get(name) for name in STRUCTURE if name in before} == {
        name: before[name] for name in STRUCTURE if name in before
    }
    assert after["model_type"] == family
    assert after["max_position_embeddings"] == 512
    if family == "deepseek_v32":
        assert after["index_topk"] == 32
    if family == "gpt_oss":  # 512 of 2,048 positions, and 128 of 512
        assert after["rope_parameters"]["original_max_position_embeddings"] == 128
        assert after["rope_parameters"]["factor"] == 4.0


def test_a_llama_keeps_queries_a_key_and_its_rope_scaling_acts_within_the_small_context() -> None:
    small = shrink(LLAMA)
    assert (small["num_attention_heads"], small["num_key_value_heads"], small["head_dim"]) == (8, 2, 16)
    assert (small["hidden_size"], small["intermediate_size"], small["num_hidden_layers"]) == (128, 448, 2)
    assert (small["vocab_size"], small["max_position_embeddings"]) == (512, 512)
    assert (small["bos_token_id"], small["eos_token_id"], small["pad_token_id"]) == (1, 2, 0)
    assert small["rope_parameters"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_theta": 500000.0,
        "original_max_position_embeddings": 32,
    }


def test_the_table_says_what_was_kept_shrunk_and_dropped() -> None:
    nested = {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 5376,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 168,
            "num_hidden_layers": 62,
            "sliding_window": 1024,
        },
    }
    small = shrink_config(nested)
    changes = {change.name: change for change in small.changes}
    assert len(changes) == len(small.changes)
    assert changes["model_type"] == Change("model_type", "shrunk", "gemma3", "gemma3_text", "its language model alone")
    assert (changes["vision_config"].action, changes["vision_config"].after) == ("dropped", None)
    assert changes["num_hidden_layers"] == Change("num_hidden_layers", "shrunk", 62, 6, "a whole period of layer_types")
    assert small.config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert changes["sliding_window"].after == 32
    assert changes["num_key_value_heads"].why == "2 queries a key, kept"
    assert changes["query_pre_attn_scalar"].after == 21  # 168 · 16 / 128
    assert changes["rms_norm_eps"].action == "kept"
    # 5,376 is less than 32 · 128, and so is the small one than 4 · 16
    assert (small.config["hidden_size"], small.config["num_attention_heads"] * small.config["head_dim"]) == (80, 64)


def test_a_latent_mixture_keeps_its_ranks_groups_and_first_dense_layer_and_trains() -> None:
    small = dict(shrink(DEEPSEEK))
    assert {
        name: small[name] for name in ("num_hidden_layers", "first_k_dense_replace", "num_nextn_predict_layers")
    } == {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}
    assert (small["q_lora_rank"], small["kv_lora_rank"], small["qk_nope_head_dim"], small["v_head_dim"]) == (
        32,
        16,
        16,
        16,
    )
    experts = small.get("n_routed_experts") or small["num_local_experts"]
    assert (experts, small["num_experts_per_tok"], small["n_group"], small["topk_group"]) == (16, 8, 4, 2)
    assert small["routed_scaling_factor"] == 2.5
    assert shrink(DEEPSEEK, v_head_dim=192)["v_head_dim"] == 24
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(small.pop("model_type"), **small), dtype=torch.float32
    )
    ids = torch.arange(3, 99)[None]
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    assert bool(loss.isfinite())
    assert model.model.layers[1].mlp.gate.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("family", "layers"),
    [("qwen3_next", 4), ("jamba", 8), ("llama4", 4), ("gemma2", 2), ("gemma3n_text", 11), ("granitemoehybrid", 2)],
)
def test_each_kind_of_layer_is_there_in_a_whole_period(family: str, layers: int) -> None:
    small = shrink({"model_type": family})
    whole = complete_config({"model_type": family})
    whole = whole.get("text_config", whole)
    assert small["num_hidden_layers"] == layers
    kinds = whole.get("layer_types") or []
    assert set(small.get("layer_types") or []) == set(kinds)
    assert sum(count_parameters(small).values()) < 5_500_000


def test_a_period_and_the_first_of_each_kind_are_found() -> None:
    assert find_period("aaaa") == 1
    assert find_period("aabaabaa") == 3
    assert find_period("aab") is None
    assert find_period("abbb") is None
    assert shortest_prefix(["dense", "dense", "sparse", "sparse"]) == 3
    assert shortest_prefix([]) == 0


def test_heads_keep_their_ratio_while_it_fits() -> None:
    assert choose_heads(32, 8) == (8, 2)
    assert choose_heads(32, 32) == (4, 4)
    assert choose_heads(12, None) == (4, None)
    assert choose_heads(2, 2) == (2, 2)
    assert choose_heads(32, 4) == (16, 2)
    assert choose_heads(48, 4) == (12, 1)
    assert choose_heads(128, 1) == (16, 1)


def test_sections_and_factors_follow_the_rotated_dimensions() -> None:
    assert share_out([16, 24, 24], 8) == [2, 3, 3]
    assert share_out([11, 11, 10], 8) == [3, 3, 2]
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0], 3) == [1.0, 3.0, 5.0]
    assert spread([1.0, 2.0], 1) == [1.0]
    assert scale_original(8192, 512 / 131072) == 32
    assert scale_original(8, 1 / 64) == 4
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": list(range(1, 49))}
    small = shrink(
        {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32},
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_scaling=scaling,
    )
    assert len(small["rope_parameters"]["long_factor"]) == 8
    assert small["rope_parameters"]["long_factor"][-1] == 48
    assert small["original_max_position_embeddings"] == 16


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"num_key_value_heads": 7},
            "model config num_key_value_heads: is 7, which does not divide 32 heads (num_attention_heads); correct the "
            "number of heads.",
        ),
        (
            {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 8},
            "model config num_experts_per_tok: is 8, more than the 4 experts of num_local_experts; correct one of "
            "them.",
        ),
        (
            {**DEEPSEEK, "n_group": 7},
            "model config n_group: is 7, which does not divide 256 experts; correct it.",
        ),
    ],
)
def test_a_config_that_cannot_be_shrunk_names_the_setting(changed: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as caught:
        shrink_config({**LLAMA, **changed})
    assert str(caught.value) == sentence


def test_a_config_that_its_class_refuses_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "hidden_act": "no-such-function"}))
    with pytest.raises(BadRequest, match=r"config\.json.*transformers cannot build it"):
        plan_small(str(tmp_path))
    for text, found in (
        ("", "'' does not exist"),
        (str(tmp_path / "nothing"), "does not exist"),
        (str(Path(__file__)), "is no JSON file"),
    ):
        with pytest.raises(BadRequest, match=found):
            plan_small(text)
    (tmp_path / "other.json").write_text('{"model_type": "qwen9"}')
    with pytest.raises(BadRequest, match="transformers has no model_type 'qwen9'"):
        plan_small(str(tmp_path / "other.json"))


def test_code_that_a_config_names_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('was run')")
    named = {"auto_map": {"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **named}))
    small = plan_small(str(tmp_path))
    assert "auto_map" not in small.shrunk.config
    assert small.family == "llama"


def test_a_shrunk_config_resolves_to_a_checkpoint_once_and_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = resolve_model(f"shrunk:{tmp_path}")
    assert model == resolve_shrunk(str(tmp_path / "config.json"))
    assert (model.family, model.positions, model.label) == ("llama", 512, f"shrunk:{tmp_path.name}")
    assert model.note == (
        f"weights are random, tokenizer is Plumbline's own: shrunk from {tmp_path.resolve() / 'config.json'}"
    )
    weight = transformers.AutoModelForCausalLM.from_pretrained(model.path).model.layers[0].input_layernorm.weight
    assert 0.1 < float(weight.detach().std()) < 0.6  # spread, not ones


def test_the_tokenizer_beside_a_config_is_kept_with_its_vocabulary(tmp_path: Path) -> None:
    tiny = resolve_model("tiny:qwen3").path
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "bos_token_id": None, "eos_token_id": 2}))
    small = plan_small(str(tmp_path))
    named = tmp_path / "model.json"  # no checkpoint's config: what lies beside it is not its own
    named.write_text((tmp_path / "config.json").read_text())
    assert plan_small(str(named)).beside == ()
    assert small.shrunk.config["vocab_size"] == 1024  # at most so many more than the 512 of the tokenizer
    out = tmp_path / "out"
    write_small(small, out)
    assert (out / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    table = json.loads((out / "shrunk.json").read_text())
    assert {"name", "action", "before", "after", "why"} == set(table[0])
    with pytest.raises(BadRequest, match="exists and is not empty"):
        write_small(small, out)


def test_the_command_prints_the_table_and_ends_with_3_where_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["shrink", str(tmp_path), "--out", str(tmp_path / "small")]) == 0
    printed = capsys.readouterr().out
    assert "llama · " in printed
    assert "intermediate_size" in printed
    assert (tmp_path / "small" / "model.safetensors").is_file()
    assert main(["shrink", str(tmp_path), "--out", str(tmp_path / "small")]) == 3
    assert "exists and is not empty" in capsys.readouterr().err


def test_gemma3_is_another_name_of_its_language_model() -> None:
    assert resolve_model("tiny:gemma3") == resolve_model("tiny:gemma3_text")
