"""The plain reference by itself: what it reads, what it refuses, its precision and its module paths."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.errors import BadRequest
from checks.references.plain import (
    PlainCausalLM,
    PlainConfig,
    RopeSettings,
    UnsupportedModel,
    inverse_frequencies,
    load_plain,
)
from checks.references.plain.attention import Attention, allow_earlier
from checks.references.plain.modules import RMSNorm, SelfAttention
from checks.references.plain.rope import rotate
from tests.references.checkpoints import DENSE, build_model, draw_batch, save_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")


def copy_with(checkpoint: Path, directory: Path, **settings: Any) -> Path:
    """A copy of the checkpoint whose config.json has other settings; None takes one out."""
    raw = json.loads((checkpoint / "config.json").read_text())
    raw = {name: value for name, value in {**raw, **settings}.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(load_file(checkpoint / "model.safetensors"), directory / "model.safetensors")
    return directory


def rewrite(directory: Path, **tensors: torch.Tensor | None) -> Path:
    """Replace tensors of the weight file; None takes one out. Names have __ for the dot."""
    held: dict[str, torch.Tensor] = load_file(directory / "model.safetensors")
    for key, tensor in tensors.items():
        name = key.replace("__", ".")
        held.pop(name, None)
        if tensor is not None:
            held[name] = tensor
    save_file(held, directory / "model.safetensors")
    return directory


def test_module_paths_and_parameters_are_those_of_transformers(checkpoint: Path) -> None:
    plain, theirs = load_plain(checkpoint, dtype=torch.float32), build_model("qwen3")
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert {name for name, _ in plain.named_modules()} == {name for name, _ in theirs.named_modules()}


def test_llama_has_no_norms_of_queries_and_keys(tmp_path: Path) -> None:
    names = {name for name, _ in load_plain(save_checkpoint(tmp_path, "llama"), dtype=torch.float32).named_parameters()}
    assert not any("q_norm" in name or "k_norm" in name for name in names)


def test_a_tied_head_is_the_embedding_and_is_listed_once(tmp_path: Path) -> None:
    model = load_plain(save_checkpoint(tmp_path, "llama", tie_word_embeddings=True), dtype=torch.float64)
    names = [name for name, _ in model.named_parameters()]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert names[0] == "model.embed_tokens.weight"
    assert "lm_head.weight" not in names


def test_a_tied_checkpoint_may_also_store_its_head(tmp_path: Path) -> None:
    directory = save_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(
        directory, lm_head__weight=embedding.clone(), model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8)
    )
    model = load_plain(directory, dtype=torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_weights_are_read_from_shards_as_from_one_file(checkpoint: Path, tmp_path: Path) -> None:
    build: Any = build_model("qwen3")
    build.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    one, many = load_plain(checkpoint, dtype=torch.float64), load_plain(tmp_path, dtype=torch.float64)
    for (name, a), (_, b) in zip(one.named_parameters(), many.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_checkpoint_in_bf16_is_widened_exactly(checkpoint: Path, tmp_path: Path) -> None:
    narrow = {name: tensor.bfloat16() for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    copy_with(checkpoint, tmp_path)
    save_file(narrow, tmp_path / "model.safetensors")
    model = load_plain(tmp_path, dtype=torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert torch.equal(model.model.norm.weight, narrow["model.norm.weight"].double())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "family": ({"model_type": "mistral"}, "model_type 'mistral' is none of llama, qwen3"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    "window by type": ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    "window": (
        {"layer_types": None, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        "sliding_window 8",
    ),
    "rope type": ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
    "partial": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor 0.5",
    ),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout 0.1"),
    "multiplier": ({"residual_multiplier": 0.22}, "residual_multiplier 0.22"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_outside_the_definition_is_unsupported_with_a_reason(
    checkpoint: Path, tmp_path: Path, case: str
) -> None:
    settings, reason = REFUSED[case]
    with pytest.raises(UnsupportedModel) as caught:
        load_plain(copy_with(checkpoint, tmp_path, **settings), dtype=torch.float32)
    assert reason in caught.value.reason


def test_settings_that_change_nothing_are_supported(checkpoint: Path, tmp_path: Path) -> None:
    harmless = {
        "attention_multiplier": None,
        "residual_multiplier": 1.0,
        "use_sliding_window": False,
        "sliding_window": 8,
    }
    assert PlainConfig.from_json(copy_with(checkpoint, tmp_path, **harmless, layer_types=None)).model_type == "qwen3"
    unused = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "layer_types": None}
    assert PlainConfig.from_json(copy_with(checkpoint, tmp_path, **unused)).model_type == "qwen3"


def test_what_a_config_leaves_out_takes_its_published_default() -> None:
    sizes = {name: DENSE[name] for name in DENSE if name not in ("head_dim", "num_key_value_heads")}
    llama = PlainConfig.from_mapping({**sizes, "model_type": "llama"})
    qwen3 = PlainConfig.from_mapping({**sizes, "model_type": "qwen3", "mlp_bias": True})
    assert (llama.head_dim, llama.num_key_value_heads, llama.rms_norm_eps, llama.rope.theta) == (8, 4, 1e-6, 10000.0)
    assert (qwen3.head_dim, qwen3.qk_norm, llama.qk_norm, qwen3.mlp_bias) == (128, True, False, False)


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"hidden_size": -1}, "hidden_size is -1"),
    "absent": ({"vocab_size": None}, "vocab_size is None"),
    "grouping": ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
    "odd": ({"head_dim": 5}, "head_dim 5 is odd"),
    "scaling": ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "llama3 lacks low_freq_factor"),
    "factor": ({"rope_parameters": {"rope_type": "linear"}}, "linear lacks factor"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_config_names_file_and_field(checkpoint: Path, tmp_path: Path, case: str) -> None:
    settings, found = MALFORMED[case]
    with pytest.raises(BadRequest) as caught:
        load_plain(copy_with(checkpoint, tmp_path, **settings), dtype=torch.float32)
    assert "config.json: " in str(caught.value)
    assert found in caught.value.found


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_config_that_is_no_json_object_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(BadRequest, match=r"config\.json: "):
        PlainConfig.from_json(tmp_path)


def test_a_missing_tensor_is_named(checkpoint: Path, tmp_path: Path) -> None:
    directory = rewrite(copy_with(checkpoint, tmp_path), model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(BadRequest, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight; "):
        load_plain(directory, dtype=torch.float32)


def test_an_unexpected_tensor_is_named_with_its_file(checkpoint: Path, tmp_path: Path) -> None:
    directory = rewrite(copy_with(checkpoint, tmp_path), model__extra__weight=torch.ones(2))
    with pytest.raises(BadRequest, match=r"model\.safetensors: holds the unexpected tensor model\.extra\.weight"):
        load_plain(directory, dtype=torch.float32)


def test_a_tensor_of_another_shape_is_named_with_its_file(checkpoint: Path, tmp_path: Path) -> None:
    directory = rewrite(copy_with(checkpoint, tmp_path), model__norm__weight=torch.ones(5))
    with pytest.raises(BadRequest, match=r"model\.norm\.weight has shape \(5,\), config\.json asks for \(32,\)"):
        load_plain(directory, dtype=torch.float32)


def test_a_truncated_file_is_named(checkpoint: Path, tmp_path: Path) -> None:
    directory = copy_with(checkpoint, tmp_path)
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadRequest, match=r"model\.safetensors: is no readable safetensors file"):
        load_plain(directory, dtype=torch.float32)


def test_a_directory_without_weights_is_named(checkpoint: Path, tmp_path: Path) -> None:
    directory = copy_with(checkpoint, tmp_path)
    (directory / "model.safetensors").unlink()
    with pytest.raises(BadRequest, match=r"holds no \*\.safetensors"):
        load_plain(directory, dtype=torch.float32)
    (directory / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(BadRequest, match=r"index\.json: has no readable weight_map"):
        load_plain(directory, dtype=torch.float32)


def test_an_unknown_attention_is_refused(checkpoint: Path) -> None:
    unknown: Any = "flash"
    with pytest.raises(BadRequest, match="choose one of eager, sdpa"):
        load_plain(checkpoint, dtype=torch.float32, attention=unknown)


def test_rms_norm_is_by_hand_what_it_should_be() -> None:
    norm = RMSNorm(2, eps=0.5, accumulate=torch.float64)
    norm.weight = torch.nn.Parameter(torch.tensor([2.0, 10.0], dtype=torch.float64))
    out = norm(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    root = math.sqrt((9 + 16) / 2 + 0.5)
    assert out.tolist()[0] == pytest.approx([2 * 3 / root, 10 * 4 / root], rel=1e-15)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    states = torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64).view(1, 1, 1, 4)
    angle = torch.tensor([math.pi / 2, math.pi / 6], dtype=torch.float64)
    turned = rotate(states, angle.cos(), angle.sin()).flatten().tolist()
    assert turned == pytest.approx([0.0, -1.0, 1.0, math.sqrt(3)], abs=1e-15)


def test_default_frequencies_are_powers_of_theta() -> None:
    frequencies = inverse_frequencies(RopeSettings(theta=16.0), head_dim=8, dtype=torch.float64)
    assert frequencies.tolist() == pytest.approx([1.0, 0.5, 0.25, 0.125], rel=1e-15)


def test_linear_scaling_divides_every_frequency() -> None:
    rope = RopeSettings("linear", theta=16.0, factor=4.0)
    frequencies = inverse_frequencies(rope, head_dim=8, dtype=torch.float64)
    assert frequencies.tolist() == pytest.approx([0.25, 0.125, 0.0625, 0.03125], rel=1e-15)


def test_llama3_keeps_short_waves_stretches_long_ones_and_blends_between() -> None:
    length = 2 * math.pi * 8  # frequency f turns 8 f times over it
    rope = RopeSettings(
        "llama3",
        theta=16.0,
        factor=8.0,
        original_max_position_embeddings=1,
        low_freq_factor=1.5 / length,
        high_freq_factor=4.5 / length,
    )
    frequencies = inverse_frequencies(rope, head_dim=8, dtype=torch.float64)
    keep = (0.25 * 8 - 1.5) / (4.5 - 1.5)
    between = keep * 0.25 + (1 - keep) * 0.25 / 8
    half = (0.5 * 8 - 1.5) / 3.0
    expected = [1.0, half * 0.5 + (1 - half) * 0.5 / 8, between, 0.125 / 8]
    scale = 1 / (2 * math.pi) / (8 / length)
    assert scale == pytest.approx(1.0)
    assert frequencies.tolist() == pytest.approx(expected, rel=1e-12)


def test_yarn_keeps_fast_dimensions_and_interpolates_slow_ones() -> None:
    rope = RopeSettings("yarn", theta=10000.0, factor=4.0, original_max_position_embeddings=4096)
    plain = inverse_frequencies(RopeSettings(theta=10000.0), head_dim=64, dtype=torch.float64)
    scaled = inverse_frequencies(rope, head_dim=64, dtype=torch.float64)
    low = math.floor(64 * math.log(4096 / (32 * 2 * math.pi)) / (2 * math.log(10000)))
    high = math.ceil(64 * math.log(4096 / (2 * math.pi)) / (2 * math.log(10000)))
    assert torch.equal(scaled[: low + 1], plain[: low + 1])
    assert torch.allclose(scaled[high:], plain[high:] / 4, rtol=1e-15)
    middle = (low + high) // 2
    share = (middle - low) / (high - low)
    assert float(scaled[middle]) == pytest.approx(float(plain[middle]) * (1 - share + share / 4), rel=1e-14)
    assert rope.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)


def test_causal_mask_excludes_later_and_padded_keys() -> None:
    mask = allow_earlier(3, torch.tensor([[0, 1, 1]]), device=torch.device("cpu"))
    assert mask[0, 0].tolist() == [[False, False, False], [False, True, False], [False, True, True]]


def test_a_mask_of_another_shape_is_refused(checkpoint: Path) -> None:
    with pytest.raises(BadRequest, match=r"attention_mask: has shape \(2, 1, 24, 24\); give a padding mask of"):
        load_plain(checkpoint, dtype=torch.float32)(draw_batch(), attention_mask=torch.ones(2, 1, 24, 24))


@pytest.mark.parametrize("attention", get_args(Attention))
def test_neighbouring_query_heads_share_a_key_head(checkpoint: Path, attention: Attention) -> None:
    config = PlainConfig.from_json(checkpoint)
    layer = SelfAttention(config, attention=attention, accumulate=torch.float64).double()
    layer.o_proj = torch.nn.Linear(64, 64, bias=False, dtype=torch.float64)
    torch.nn.init.eye_(layer.o_proj.weight)
    hidden = torch.randn(1, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    turn = (torch.ones(1, 1, 5, 8, dtype=torch.float64), torch.zeros(1, 1, 5, 8, dtype=torch.float64))
    mask = allow_earlier(5, None, device=torch.device("cpu"))
    before = layer(hidden, turn, mask)
    with torch.no_grad():
        layer.v_proj.weight[16:] += 1.0  # the second key and value head
    moved = (layer(hidden, turn, mask) - before).abs().amax(dim=(0, 1)).view(4, 16).amax(dim=1)
    assert (moved > 1e-6).tolist() == [False, False, True, True]


@pytest.mark.parametrize("attention", get_args(Attention))
def test_a_query_that_may_attend_to_nothing_yields_nothing(checkpoint: Path, attention: Attention) -> None:
    model: Any = load_plain(checkpoint, dtype=torch.float64, attention=attention)
    held: list[torch.Tensor] = []
    model.model.layers[0].self_attn.register_forward_hook(lambda _module, _inputs, output: held.append(output))
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[0, :6] = 0
    model(draw_batch(), attention_mask=mask).sum().backward()
    assert held[0][0, :6].abs().max() == 0.0
    assert held[0][0, 6:].abs().min() > 0.0
    gradients: Iterable[torch.Tensor | None] = (parameter.grad for parameter in model.parameters())
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)


def run(model: PlainCausalLM, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids)
    return logits


def test_both_attentions_compute_the_same(checkpoint: Path) -> None:
    ids = draw_batch()
    eager = run(load_plain(checkpoint, dtype=torch.float64, attention="eager"), ids)
    sdpa = run(load_plain(checkpoint, dtype=torch.float64, attention="sdpa"), ids)
    assert torch.allclose(eager, sdpa, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", get_args(Attention))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_own_precision_accumulates_in_float32(checkpoint: Path, dtype: torch.dtype, attention: Attention) -> None:
    ids = draw_batch()
    exact = run(load_plain(checkpoint, dtype=torch.float64, attention=attention), ids)
    model = load_plain(checkpoint, dtype=dtype, attention=attention)
    logits = run(model, ids)
    assert (model.accumulate, logits.dtype, model.model.rotary_emb.inv_freq.dtype) == (torch.float32,) * 3
    error = float((logits.double() - exact).norm() / exact.norm())
    assert 0.0 < error < (1e-5 if dtype == torch.float32 else 0.2)


def test_norm_statistics_of_bf16_are_accumulated_wider() -> None:
    states = torch.randn(8, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = RMSNorm(512, eps=1e-6, accumulate=torch.float64)(states).bfloat16()
    wide = RMSNorm(512, eps=1e-6, accumulate=torch.float32).bfloat16()(states)
    narrow = RMSNorm(512, eps=1e-6, accumulate=torch.bfloat16).bfloat16()(states)
    assert wide.dtype == torch.bfloat16
    assert (wide != exact).double().mean().item() < 1e-3
    assert (narrow != exact).double().mean().item() > 1e-2


@pytest.mark.parametrize("attention", get_args(Attention))
def test_float32_weights_run_under_bf16_autocast(checkpoint: Path, attention: Attention) -> None:
    ids = draw_batch()
    model = load_plain(checkpoint, dtype=torch.float32, attention=attention)
    exact = run(model, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids)
    logits.sum().backward()
    error = float((logits.detach() - exact).norm() / exact.norm())
    assert logits.dtype == torch.float32
    assert 1e-4 < error < 0.2
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
