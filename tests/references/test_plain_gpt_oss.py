"""gpt_oss: the plain reference and transformers' class agree in float64, and a wrong constant shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checks.errors import BadRequest
from checks.references.hf import lift_casts, load_hf
from checks.references.plain import UnsupportedModel, load_plain, read_config
from checks.references.plain.gpt_oss import GptOssConfig
from tests.references.agreement import (
    LINEAR,
    LLAMA3,
    SEEN,
    TOLERANCE,
    YARN,
    YARN_FULL,
    Step,
    compare_steps,
    copy_checkpoint,
    differ,
    pad_batch,
    run_plain,
    run_step,
)
from tests.references.checkpoints import build_model, draw_batch, save_checkpoint

CLAMPED = {"swiglu_limit": 1.0}
"""Within the range of the experts' inputs, so that both clamps act."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "window of 8, rope settings left out": ("eager", {}),
    "by torch's kernel": ("sdpa", CLAMPED),
    "one key head, clamped, another alpha": ("eager", {"num_key_value_heads": 1, **CLAMPED, "swiglu_alpha": 1.3}),
    "three of five experts, window of 3": (
        "sdpa",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 3},
    ),
    "yarn": ("eager", {"rope_parameters": {**YARN, "truncate": False}, **CLAMPED}),
    "yarn, every parameter, tied": ("eager", {"rope_parameters": YARN_FULL, "tie_word_embeddings": True}),
    "llama3, no biases of attention": ("sdpa", {"rope_parameters": LLAMA3, "attention_bias": False}),
    "linear, full before sliding, eps": (
        "eager",
        {"rope_parameters": LINEAR, "layer_types": ["full_attention", "sliding_attention"], "rms_norm_eps": 1e-3},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_every_gradient_agree(tmp_path: Path, variant: str) -> None:
    attention, settings = VARIANTS[variant]
    checkpoint = save_checkpoint(tmp_path, "gpt_oss", **settings)
    ids = draw_batch(length=40)
    assert max(compare_steps(checkpoint, attention, ids, ids)) < TOLERANCE


@pytest.mark.parametrize(("side", "attention"), [("left", "eager"), ("right", "sdpa"), ("left", "sdpa")])
def test_padded_rows_agree(tmp_path: Path, side: str, attention: str) -> None:
    checkpoint = save_checkpoint(tmp_path, "gpt_oss", **CLAMPED)
    ids, labels, mask = pad_batch(side)
    assert max(compare_steps(checkpoint, attention, ids, labels, attention_mask=mask)) < TOLERANCE


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gpt_oss")
    return save_checkpoint(directory, "gpt_oss", **CLAMPED, rope_parameters={**YARN, "truncate": False})


@pytest.fixture(scope="module")
def kept(right: Path) -> Step:
    return run_plain(right, draw_batch(length=40))


WRONG: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {"rms_norm_eps": 1.1e-5},
    "rope_theta": {"rope_parameters": {**YARN, "truncate": False, "rope_theta": 10001.0}},
    "rope factor": {"rope_parameters": {**YARN, "truncate": False, "factor": 4.01}},
    "yarn's ramp rounded": {"rope_parameters": YARN},
    "window one shorter": {"sliding_window": 7},
    "window one longer": {"sliding_window": 9},
    "layers swapped": {"layer_types": ["full_attention", "sliding_attention"]},
    "alpha": {"swiglu_alpha": 1.7},
    "limit": {"swiglu_limit": 1.01},
    "one expert fewer": {"num_experts_per_tok": 1},
}


@pytest.mark.parametrize("constant", WRONG)
def test_a_changed_constant_is_seen_far_above_the_tolerance(
    right: Path, kept: Step, tmp_path: Path, constant: str
) -> None:
    wrong = run_plain(copy_checkpoint(right, tmp_path, **WRONG[constant]), draw_batch(length=40))
    assert max(differ(wrong, kept)) > SEEN


def run_changed(checkpoint: Path, ids: torch.Tensor, change: str) -> Step:
    """The plain model's step with one thing wrong in its second layer."""
    model: Any = load_plain(checkpoint, dtype=torch.float64, attention="eager")
    layer = model.model.layers[1]
    with torch.no_grad():
        if change == "sink dropped":
            layer.self_attn.sinks.fill_(-1e9)
        elif change == "one sink":
            layer.self_attn.sinks[2] += 1e-4
        elif change == "bias of an expert":
            layer.mlp.experts.down_proj_bias[1] *= 1.0001
        elif change == "bias of the router":
            layer.mlp.router.bias[0] += 1e-4
        else:
            layer.self_attn.scaling *= 1.0001
    return run_step(model, ids, ids)


@pytest.mark.parametrize("change", ["sink dropped", "one sink", "bias of an expert", "bias of the router", "scale"])
def test_a_changed_module_is_seen_far_above_the_tolerance(right: Path, kept: Step, change: str) -> None:
    changed = run_changed(right, draw_batch(length=40), change)
    assert max(float((changed[1][name] - kept[1][name]).norm() / kept[1][name].norm()) for name in kept[1]) > SEEN


def test_module_paths_and_parameters_are_those_of_transformers(right: Path) -> None:
    plain, theirs = load_plain(right, dtype=torch.float32), build_model("gpt_oss")
    paths = {name for name, _ in plain.named_modules()}
    assert {name for name, _ in plain.named_parameters()} == {name for name, _ in theirs.named_parameters()}
    assert {name for name, _ in theirs.named_modules()} <= paths


def test_the_window_counts_the_query_itself(right: Path) -> None:
    model = load_plain(right, dtype=torch.float64)
    before = probe_first_layer(model, draw_batch(rows=1, length=12))
    ids = draw_batch(rows=1, length=12)
    ids[0, 2] = 5 if ids[0, 2] != 5 else 6
    moved = (probe_first_layer(model, ids) - before).abs().amax(dim=(0, 2)) > 1e-12
    # A window of 8: token 2 is seen by queries 2 to 9.
    assert moved.tolist() == [False] * 2 + [True] * 8 + [False] * 2


def probe_first_layer(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """(1, S, H): what the first layer's attention, which slides, gives for these tokens."""
    held: list[torch.Tensor] = []
    handle = model.model.layers[0].self_attn.register_forward_hook(lambda _module, _args, out: held.append(out))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return held[0]


def test_what_a_config_leaves_out_takes_its_published_value(right: Path, tmp_path: Path) -> None:
    absent = dict.fromkeys(
        ("rope_parameters", "layer_types", "swiglu_alpha", "swiglu_limit", "rms_norm_eps", "attention_bias")
    )
    config = read_config(copy_checkpoint(right, tmp_path, **absent))
    assert isinstance(config, GptOssConfig)
    assert (config.rope.rope_type, config.rope.theta, config.rope.factor) == ("yarn", 150_000.0, 32.0)
    assert (config.rope.original_max_position_embeddings, config.rope.truncate) == (4096, False)
    assert (config.sliding_windows, config.swiglu_alpha, config.swiglu_limit) == ((8, None), 1.702, 7.0)
    assert (config.rms_norm_eps, config.attention_bias) == (1e-5, True)


def test_other_definitions_are_refused(right: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        read_config(copy_checkpoint(right, tmp_path, quantization_config={"quant_method": "mxfp4"}))
    (tmp_path / "types").mkdir()
    chunked = copy_checkpoint(right, tmp_path / "types", layer_types=["chunked_attention", "full_attention"])
    with pytest.raises(UnsupportedModel, match=r"layer_types \['chunked_attention'\]"):
        read_config(chunked)


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "types": ({"layer_types": ["sliding_attention"]}, "layer_types names 1 of 2 layers"),
    "window": ({"sliding_window": None}, "sliding_window is None"),
    "limit": ({"swiglu_limit": 0}, "swiglu_limit is 0"),
    "top-k": ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 exceeds the 4 experts"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_config_names_the_field(right: Path, tmp_path: Path, case: str) -> None:
    settings, reason = MALFORMED[case]
    with pytest.raises(BadRequest, match=reason):
        read_config(copy_checkpoint(right, tmp_path, **settings))


@pytest.mark.parametrize(("family", "leaks"), [("gpt_oss", True), ("qwen3_moe", False)])
def test_transformers_isolates_packed_documents_but_for_gpt_oss(tmp_path: Path, family: str, leaks: bool) -> None:
    # By position_ids that restart; https://github.com/huggingface/transformers/pull/39997
    model = load_hf(save_checkpoint(tmp_path, family), dtype=torch.float64, attention="eager")
    ids = draw_batch(rows=1, length=16)
    positions = torch.arange(8).repeat(2)[None]
    other = ids.clone()
    other[0, :8] = draw_batch(rows=2, length=8)[1]
    with torch.no_grad(), lift_casts():
        moved = model(ids, position_ids=positions).logits - model(other, position_ids=positions).logits
    assert bool(moved[0, 8:].abs().max() > 1e-6) is leaks
