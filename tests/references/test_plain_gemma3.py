"""gemma3 text: the plain reference and transformers' class agree in float64, and a wrong constant shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checks.errors import BadRequest
from checks.references.hf import load_hf
from checks.references.plain import UnsupportedModel, load_plain, read_config
from checks.references.plain.gemma3 import Gemma3Config
from tests.references.agreement import (
    LINEAR,
    LLAMA3,
    SEEN,
    TOLERANCE,
    YARN,
    Step,
    compare_steps,
    copy_checkpoint,
    differ,
    pad_batch,
    run_class,
    run_plain,
    run_step,
)
from tests.references.checkpoints import build_model, draw_batch, save_checkpoint

LOCAL = {"rope_type": "default", "rope_theta": 77.0}


def by_type(full: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": local}}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "window of 8, tied": ("eager", {}),
    "untied, one key head, window of 3": (
        "sdpa",
        {"tie_word_embeddings": False, "num_key_value_heads": 1, "sliding_window": 3},
    ),
    "queries scaled by another size": ("eager", {"query_pre_attn_scalar": 24, "rms_norm_eps": 1e-3}),
    "logits capped": ("sdpa", {"final_logit_softcapping": 3.0}),
    "linear beside another local base": ("eager", by_type(LINEAR, LOCAL)),
    "yarn": ("sdpa", by_type(YARN, LOCAL)),
    "llama3 in both, biases": ("eager", {**by_type(LLAMA3, {**LLAMA3, "factor": 4.0}), "attention_bias": True}),
    "four layers, two of them global": (
        "sdpa",
        {"num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_every_gradient_agree(tmp_path: Path, variant: str) -> None:
    attention, settings = VARIANTS[variant]
    checkpoint = save_checkpoint(tmp_path, "gemma3_text", **settings)
    ids = draw_batch(length=40)
    assert max(compare_steps(checkpoint, attention, ids, ids)) < TOLERANCE


@pytest.mark.parametrize(("side", "attention"), [("left", "eager"), ("right", "sdpa")])
def test_padded_rows_agree(tmp_path: Path, side: str, attention: str) -> None:
    checkpoint = save_checkpoint(tmp_path, "gemma3_text")
    ids, labels, mask = pad_batch(side)
    assert max(compare_steps(checkpoint, attention, ids, labels, attention_mask=mask)) < TOLERANCE


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gemma3")
    return save_checkpoint(directory, "gemma3_text", final_logit_softcapping=3.0, **by_type(LINEAR, LOCAL))


@pytest.fixture(scope="module")
def kept(right: Path) -> Step:
    return run_plain(right, draw_batch(length=40))


WRONG: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {"rms_norm_eps": 1e-5},
    "global base": by_type({**LINEAR, "rope_theta": 5001.0}, LOCAL),
    "global factor": by_type({**LINEAR, "factor": 4.01}, LOCAL),
    "local base": by_type(LINEAR, {**LOCAL, "rope_theta": 77.1}),
    "window one shorter": {"sliding_window": 7},
    "window one longer": {"sliding_window": 9},
    "layers swapped": {"layer_types": ["full_attention", "sliding_attention"]},
    "scale of the queries": {"query_pre_attn_scalar": 16.01},
    "cap of the logits": {"final_logit_softcapping": 3.001},
    "no cap of the logits": {"final_logit_softcapping": None},
    "scores capped": {"attn_logit_softcapping": 50.0},
}


@pytest.mark.parametrize("constant", WRONG)
def test_a_changed_constant_is_seen_far_above_the_tolerance(
    right: Path, kept: Step, tmp_path: Path, constant: str
) -> None:
    wrong = run_plain(copy_checkpoint(right, tmp_path, **WRONG[constant]), draw_batch(length=40))
    assert max(differ(wrong, kept)) > SEEN


def run_changed(checkpoint: Path, ids: torch.Tensor, change: str) -> Step:
    """The plain model's step with one thing wrong in its second layer, or in its embedding."""
    model: Any = load_plain(checkpoint, dtype=torch.float64)
    layer = model.model.layers[1]
    if change == "embedding not scaled":
        model.model.embed_tokens.embedding_dim = 1
    elif change == "a norm by weight, not 1 + weight":
        layer.post_feedforward_layernorm.weight.data -= 1.0
    elif change == "activation":
        layer.mlp.act_fn = torch.nn.GELU()
    else:
        layer.self_attn.scaling *= 1.0001
    return run_step(model, ids, ids)


@pytest.mark.parametrize("change", ["embedding not scaled", "a norm by weight, not 1 + weight", "activation", "scale"])
def test_a_changed_module_is_seen_far_above_the_tolerance(right: Path, kept: Step, change: str) -> None:
    assert max(differ(run_changed(right, draw_batch(length=40), change), kept)) > SEEN


def test_module_paths_and_parameters_are_those_of_transformers(right: Path) -> None:
    plain, theirs = load_plain(right, dtype=torch.float32), build_model("gemma3_text")
    paths = {name for name, _ in plain.named_modules()}
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert {name for name, _ in theirs.named_modules()} <= paths


def test_the_published_form_of_settings_means_the_same(right: Path, tmp_path: Path) -> None:
    published = {
        "rope_parameters": None,
        "rope_theta": 5000.0,
        "rope_local_base_freq": 77.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "layer_types": None,
        "sliding_window_pattern": 2,
        "tie_word_embeddings": None,
        "rms_norm_eps": None,
    }
    copy_checkpoint(right, tmp_path, **published)
    assert read_config(tmp_path) == read_config(right)
    ids = draw_batch()
    assert run_plain(tmp_path, ids)[0] == run_plain(right, ids)[0]


def test_the_pattern_and_bases_are_the_published_ones_unless_stated(right: Path, tmp_path: Path) -> None:
    absent = dict.fromkeys(("rope_parameters", "layer_types"))
    config = read_config(copy_checkpoint(right, tmp_path, **absent, num_hidden_layers=7))
    assert isinstance(config, Gemma3Config)
    assert config.sliding_windows == (8, 8, 8, 8, 8, None, 8)
    assert (config.rope.theta, config.local_rope.theta) == (1_000_000.0, 10_000.0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
    "both directions": ({"use_bidirectional_attention": True}, "the definition is causal"),
    "rope of no type": ({"rope_parameters": LINEAR}, "not nested by layer type"),
    "rope of a type": (by_type({**LINEAR, "rope_type": "dynamic"}, LOCAL), "rope type 'dynamic'"),
    "images": ({"model_type": "gemma3"}, "model_type 'gemma3' is none of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_definition_does_not_cover_is_refused(right: Path, tmp_path: Path, case: str) -> None:
    settings, reason = REFUSED[case]
    with pytest.raises(UnsupportedModel) as caught:
        read_config(copy_checkpoint(right, tmp_path, **settings))
    assert reason in caught.value.reason


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "window": ({"sliding_window": None}, "sliding_window is None"),
    "scale": ({"query_pre_attn_scalar": None}, "query_pre_attn_scalar is None"),
    "cap": ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_config_names_the_field(right: Path, tmp_path: Path, case: str) -> None:
    settings, reason = MALFORMED[case]
    with pytest.raises(BadRequest, match=reason):
        read_config(copy_checkpoint(right, tmp_path, **settings))


def test_transformers_does_not_apply_the_cap_of_the_scores(right: Path, tmp_path: Path) -> None:
    # gemma_pytorch caps them wherever attn_logit_softcapping is set; the class reads it and passes it to no one.
    ids = draw_batch(length=40)
    capped = copy_checkpoint(right, tmp_path, attn_logit_softcapping=2.0)
    plain, ignored = run_plain(capped, ids), run_class(capped, ids)
    assert max(differ(ignored, run_class(right, ids))) == 0.0
    assert max(differ(plain, ignored)) > SEEN
    # The class's own eager function caps when it is told to, and then both agree.
    assert max(differ(plain, run_class(capped, ids, softcap=2.0))) < TOLERANCE
    assert max(differ(run_plain(capped, ids, attention="sdpa"), plain)) == 0.0


def test_transformers_rounds_the_ramp_of_a_nested_yarn_that_asks_otherwise(right: Path, tmp_path: Path) -> None:
    # modeling_rope_utils looks for `truncate` beside the layer types, not within them.
    ids = draw_batch(length=40)
    exact = copy_checkpoint(right, tmp_path, **by_type({**YARN, "truncate": False}, LOCAL))
    assert max(differ(run_plain(exact, ids), run_class(exact, ids))) > SEEN
    (tmp_path / "rounded").mkdir()
    rounded = copy_checkpoint(right, tmp_path / "rounded", **by_type(YARN, LOCAL))
    assert max(differ(run_plain(rounded, ids), run_class(exact, ids))) < TOLERANCE


def test_the_scale_of_embeddings_is_rounded_to_their_dtype(right: Path) -> None:
    model: Any = load_plain(right, dtype=torch.bfloat16)
    ids = draw_batch(rows=1, length=3)
    embedded = model.model.embed_tokens(ids)
    assert torch.equal(embedded, model.model.embed_tokens.weight[ids] * torch.tensor(32.0**0.5, dtype=torch.bfloat16))
    theirs: Any = load_hf(right, dtype=torch.bfloat16)
    assert torch.equal(embedded, theirs.model.embed_tokens(ids))
