"""qwen3_moe: the plain reference and transformers' class agree in float64, and a wrong constant shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checks.errors import BadRequest
from checks.references.plain import UnsupportedModel, load_plain, read_config
from checks.references.plain.qwen3_moe import Qwen3MoeConfig
from tests.references.agreement import (
    LINEAR,
    LLAMA3,
    SEEN,
    TOLERANCE,
    YARN_FULL,
    Step,
    compare_steps,
    copy_checkpoint,
    differ,
    edit_config,
    pad_batch,
    run_class,
    run_plain,
    run_step,
)
from tests.references.checkpoints import build_model, draw_batch, save_checkpoint

WINDOW: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 8}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "two of four experts": ("eager", {}),
    "three of five, weights not normalised": (
        "sdpa",
        {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": False},
    ),
    "one key head, window of 8, llama3": ("eager", {"num_key_value_heads": 1, **WINDOW, "rope_parameters": LLAMA3}),
    "window of 8, linear, tied": ("sdpa", {**WINDOW, "rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "a dense layer by step, yarn": ("eager", {"decoder_sparse_step": 2, "rope_parameters": YARN_FULL}),
    "a dense layer by name, biases": ("sdpa", {"mlp_only_layers": [1], "attention_bias": True, "rms_norm_eps": 1e-3}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_every_gradient_agree(tmp_path: Path, variant: str) -> None:
    attention, settings = VARIANTS[variant]
    checkpoint = save_checkpoint(tmp_path, "qwen3_moe", **settings)
    ids = draw_batch(length=40)
    assert max(compare_steps(checkpoint, attention, ids, ids)) < TOLERANCE


@pytest.mark.parametrize(("side", "attention"), [("left", "eager"), ("right", "sdpa")])
def test_padded_rows_agree(tmp_path: Path, side: str, attention: str) -> None:
    checkpoint = save_checkpoint(tmp_path, "qwen3_moe", **WINDOW)
    ids, labels, mask = pad_batch(side)
    assert max(compare_steps(checkpoint, attention, ids, labels, attention_mask=mask)) < TOLERANCE


WRONG: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {"rms_norm_eps": 1.1e-6},
    "rope_theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 10001.0}},
    "window one shorter": {"sliding_window": 7},
    "window one longer": {"sliding_window": 9},
    "no window": {"use_sliding_window": False},
    "weights not normalised": {"norm_topk_prob": False},
    "one expert fewer": {"num_experts_per_tok": 1},
}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("qwen3_moe"), "qwen3_moe", **WINDOW)


@pytest.fixture(scope="module")
def kept(right: Path) -> Step:
    return run_plain(right, draw_batch(length=40))


@pytest.mark.parametrize("constant", WRONG)
def test_a_changed_constant_is_seen_far_above_the_tolerance(
    right: Path, kept: Step, tmp_path: Path, constant: str
) -> None:
    wrong = run_plain(copy_checkpoint(right, tmp_path, **WRONG[constant]), draw_batch(length=40))
    assert max(differ(wrong, kept)) > SEEN


def run_changed(checkpoint: Path, ids: torch.Tensor, change: str) -> Step:
    """The plain model's step with one thing wrong in one layer."""
    model: Any = load_plain(checkpoint, dtype=torch.float64)
    if change == "scale":
        model.model.layers[1].self_attn.scaling *= 1.0001
    elif change == "an expert":
        model.model.layers[0].mlp.experts.down_proj.data[2] *= 1.0001
    else:
        model.model.layers[1].self_attn.k_norm.variance_epsilon = 1e-5
    return run_step(model, ids, ids)


@pytest.mark.parametrize("change", ["scale", "an expert", "eps of the keys"])
def test_a_changed_module_is_seen_far_above_the_tolerance(right: Path, kept: Step, change: str) -> None:
    assert max(differ(run_changed(right, draw_batch(length=40), change), kept)) > SEEN


def test_module_paths_and_parameters_are_those_of_transformers(right: Path) -> None:
    plain, theirs = load_plain(right, dtype=torch.float32), build_model("qwen3_moe", **WINDOW)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert {name for name, _ in plain.named_modules()} == {name for name, _ in theirs.named_modules()}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu': the definition has silu"),
    "two readings of a window": ({"max_window_layers": 1}, "max_window_layers 1 beside use_sliding_window"),
    "layer types": ({"layer_types": ["sliding_attention", "full_attention"]}, "one type for all layers"),
    "head_dim": ({"head_dim": None}, "head_dim is not stated"),
    "normalisation": ({"norm_topk_prob": None}, "norm_topk_prob is not stated"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_definition_does_not_cover_is_refused(right: Path, tmp_path: Path, case: str) -> None:
    settings, reason = REFUSED[case]
    with pytest.raises(UnsupportedModel) as caught:
        read_config(copy_checkpoint(right, tmp_path, **settings))
    assert reason in caught.value.reason


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"num_local_experts": 0}, "num_local_experts is 0"),
    "top-k": ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 exceeds the 4 experts"),
    "dense layers": ({"mlp_only_layers": ["1"]}, r"mlp_only_layers is \['1'\]"),
    "window": ({"sliding_window": -1}, "sliding_window is -1"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_config_names_the_field(right: Path, tmp_path: Path, case: str) -> None:
    settings, reason = MALFORMED[case]
    with pytest.raises(BadRequest, match=reason):
        read_config(copy_checkpoint(right, tmp_path, **settings))


def test_settings_that_change_nothing_are_read(right: Path, tmp_path: Path) -> None:
    copy_checkpoint(
        right, tmp_path, use_sliding_window=False, max_window_layers=28, num_local_experts=None, num_experts=4
    )
    config = read_config(tmp_path)
    assert isinstance(config, Qwen3MoeConfig)
    assert (config.num_experts, config.sliding_windows, config.routed) == (4, (None, None), (True, True))
    assert config.qk_norm


def test_transformers_slides_in_every_layer_whatever_max_window_layers_says(right: Path, tmp_path: Path) -> None:
    # Qwen2 and Qwen3 slide from layer max_window_layers on; the class of qwen3_moe does not read the setting.
    ids = draw_batch(length=40)
    stated = copy_checkpoint(right, tmp_path, max_window_layers=2)
    assert run_class(stated, ids)[0] == run_class(right, ids)[0]
    full = abs(run_plain(edit_config(stated, use_sliding_window=False), ids)[0] - run_plain(right, ids)[0])
    assert full > SEEN
