"""The plain reference and transformers, written apart, agree in float64 to 1e-10 in loss and every gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.references.plain import load_plain
from tests.references.agreement import (
    LINEAR,
    LLAMA3,
    SEEN,
    TOLERANCE,
    YARN,
    YARN_FULL,
    compare_steps,
    pad_batch,
    run_step,
)
from tests.references.checkpoints import draw_batch, save_checkpoint

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one key head": {"num_key_value_heads": 1},
    "a key head each": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "attention bias": {"attention_bias": True},
    "head_dim of its own": {"head_dim": 6},
    "eps of its own": {"rms_norm_eps": 1e-3},
    "theta of its own": {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "linear": {"rope_parameters": LINEAR},
    "yarn": {"rope_parameters": YARN},
    "yarn, every parameter": {"rope_parameters": YARN_FULL},
    "yarn, attention factor": {"rope_parameters": {**YARN, "attention_factor": 1.3}},
    "yarn, tied": {"rope_parameters": YARN, "tie_word_embeddings": True},
}
CASES = [(family, variant) for family in ("llama", "qwen3") for variant in VARIANTS]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_loss_and_every_gradient_agree(tmp_path: Path, family: str, variant: str, attention: str) -> None:
    checkpoint = save_checkpoint(tmp_path, family, **VARIANTS[variant])
    ids = draw_batch(length=80)
    labels = ids.clone()
    labels[:, :5] = -100
    loss_error, gradient_error = compare_steps(checkpoint, attention, ids, labels)
    assert loss_error < TOLERANCE
    assert gradient_error < TOLERANCE


def test_mlp_bias_of_llama_agrees(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", mlp_bias=True, attention_bias=True)
    ids = draw_batch()
    assert max(compare_steps(checkpoint, "sdpa", ids, ids)) < TOLERANCE


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_padded_rows_agree(tmp_path: Path, family: str, side: str, attention: str) -> None:
    checkpoint = save_checkpoint(tmp_path, family)
    ids, labels, mask = pad_batch(side)
    assert max(compare_steps(checkpoint, attention, ids, labels, attention_mask=mask)) < TOLERANCE


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_padding_changes_nothing_whatever_its_side(tmp_path: Path, family: str, attention: Any) -> None:
    checkpoint = save_checkpoint(tmp_path, family)
    ids = draw_batch(rows=1, length=12)
    alone = load_plain(checkpoint, dtype=torch.float64, attention=attention)(ids)
    blank = torch.zeros(1, 7, dtype=torch.long)
    mask = torch.cat([torch.ones_like(ids), blank], 1)
    model = load_plain(checkpoint, dtype=torch.float64, attention=attention)
    right = model(torch.cat([ids, blank], 1), attention_mask=mask)[:, :12]
    left = model(torch.cat([blank, ids], 1), attention_mask=mask.flip(1))[:, 7:]
    assert torch.allclose(right, alone, rtol=0, atol=1e-11)
    assert torch.allclose(left, alone, rtol=0, atol=1e-11)


def test_given_positions_agree(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "qwen3", rope_parameters=LLAMA3)
    ids = draw_batch()
    positions = (torch.arange(24) * 3 + 5)[None].expand(2, -1)
    mask = torch.ones_like(ids)  # without it transformers reads jumping positions as packed documents
    assert max(compare_steps(checkpoint, "eager", ids, ids, position_ids=positions, attention_mask=mask)) < TOLERANCE


@pytest.mark.parametrize("parameters", [LLAMA3, LINEAR, YARN_FULL], ids=["llama3", "linear", "yarn"])
def test_the_older_form_of_rope_settings_means_the_same(tmp_path: Path, parameters: dict[str, Any]) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", rope_parameters=parameters)
    ids = draw_batch()
    before = load_plain(checkpoint, dtype=torch.float64)(ids)
    raw = json.loads((checkpoint / "config.json").read_text())
    stated = raw.pop("rope_parameters")
    raw["rope_theta"] = stated.pop("rope_theta")
    raw["rope_scaling"] = {"type": stated.pop("rope_type"), **stated}
    (checkpoint / "config.json").write_text(json.dumps(raw))
    assert torch.equal(load_plain(checkpoint, dtype=torch.float64)(ids), before)


WRONG: dict[str, dict[str, Any]] = {
    "rms_norm_eps": {"rms_norm_eps": 1.1e-6},
    "rope_theta": {"rope_parameters": {**LLAMA3, "rope_theta": 10001.0}},
    "rope factor": {"rope_parameters": {**LLAMA3, "factor": 8.01}},
    "low_freq_factor": {"rope_parameters": {**LLAMA3, "low_freq_factor": 1.01}},
    "high_freq_factor": {"rope_parameters": {**LLAMA3, "high_freq_factor": 4.01}},
    "original length": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 65}},
    "rope type": {"rope_parameters": {**LLAMA3, "rope_type": "linear"}},
    "tying": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_setting_that_differs_is_seen_far_above_the_tolerance(tmp_path: Path, setting: str) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama", rope_parameters=LLAMA3)
    model = load_plain(checkpoint, dtype=torch.float64)
    ids = draw_batch(length=80)
    _, right = run_step(model, ids, ids)
    raw = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**raw, **WRONG[setting]}))
    if setting == "tying":
        with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
            load_plain(checkpoint, dtype=torch.float64)
        return
    _, wrong = run_step(load_plain(checkpoint, dtype=torch.float64), ids, ids)
    assert max(float((wrong[name] - right[name]).norm() / right[name].norm()) for name in right) > SEEN


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_scale_one_per_cent_off_is_seen(tmp_path: Path, attention: Any) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama")
    ids = draw_batch()
    loss, _ = run_step(load_plain(checkpoint, dtype=torch.float64, attention=attention), ids, ids)
    model: Any = load_plain(checkpoint, dtype=torch.float64, attention=attention)
    model.model.layers[1].self_attn.scaling *= 1.01
    wrong, _ = run_step(model, ids, ids)
    assert abs(wrong - loss) / loss > SEEN
