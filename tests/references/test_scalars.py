"""Scalar settings asked for by a config: by definition, and as transformers' model holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.errors import BadRequest
from checks.references.scalars import build_empty, expected_scalars, read_scalars
from tests.references.checkpoints import FAMILIES, build_model, save_checkpoint

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 500.0}, YARN])
def test_the_definition_says_what_transformers_holds(tmp_path: Path, family: str, rope: dict[str, Any]) -> None:
    expected = expected_scalars(save_checkpoint(tmp_path, family, rms_norm_eps=1e-4, rope_parameters=rope))
    held = read_scalars(build_model(family, rms_norm_eps=1e-4, rope_parameters=rope))
    norms = 2 if family == "llama" else 4
    assert len(expected) == 2 + 2 * (1 + norms)
    for path, attributes in expected.items():
        for name, value in attributes.items():
            if name == "inv_freq":
                assert held[path][name] == pytest.approx(value, rel=1e-6), path
            else:
                assert held[path][name] == value, f"{path}.{name}"


def test_the_definitions_values_are_those_of_the_config(tmp_path: Path) -> None:
    expected = expected_scalars(save_checkpoint(tmp_path, "qwen3", rms_norm_eps=1e-4, head_dim=4))
    assert expected["model.layers.1.self_attn.k_norm"] == {"variance_epsilon": 1e-4}
    assert expected["model.layers.1.input_layernorm"] == expected["model.norm"] == {"variance_epsilon": 1e-4}
    assert expected["model.layers.1.self_attn"] == {
        "head_dim": 4,
        "num_key_value_groups": 2,
        "scaling": 0.5,
        "attention_dropout": 0.0,
        "is_causal": True,
        "layer_idx": 1,
    }
    assert expected["model.rotary_emb"] == {
        "rope_type": "default",
        "inv_freq": [1.0, pytest.approx(0.01, rel=1e-15)],
        "attention_scaling": 1.0,
    }


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("llama", "qwen3")])
def test_other_families_are_read_off_a_model_built_from_the_config(tmp_path: Path, family: str) -> None:
    model = build_model(family)
    saved: Any = model
    saved.save_pretrained(tmp_path)
    expected, held = expected_scalars(tmp_path), read_scalars(model)
    assert expected.keys() == held.keys()
    for path, attributes in held.items():
        for name, value in attributes.items():
            asked = expected[path][name]
            if isinstance(value, float | list):
                assert asked == pytest.approx(value, rel=1e-6), f"{path}.{name}"
            else:
                assert asked == value, f"{path}.{name}"
    assert any("inv_freq" in name for attributes in expected.values() for name in attributes)
    assert any("eps" in name for attributes in expected.values() for name in attributes)


def test_a_setting_outside_the_definition_is_read_off_transformers_model(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "llama")
    raw = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**raw, "attention_dropout": 0.25}))
    assert expected_scalars(checkpoint)["model.layers.0.self_attn"]["attention_dropout"] == 0.25


def test_what_a_run_sets_as_it_goes_is_left_out(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "mistral")
    names = {name for attributes in expected_scalars(checkpoint).values() for name in attributes}
    assert names.isdisjoint({"training", "gradient_checkpointing", "max_seq_len_cached", "name_or_path"})
    assert not any(name.startswith("_") for name in names)
    assert all(parameter.is_meta for parameter in build_empty(checkpoint).parameters())


def test_frequencies_of_other_families_are_in_float64_too(tmp_path: Path) -> None:
    frequencies = expected_scalars(save_checkpoint(tmp_path, "mistral"))["model.rotary_emb"]["inv_freq"]
    exact = (1.0 / 10000.0 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)).tolist()
    assert frequencies == pytest.approx(exact, rel=1e-14)


def test_a_config_that_nothing_can_read_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_family"}')
    with pytest.raises(BadRequest, match=r"config\.json: transformers cannot build a model of it"):
        expected_scalars(tmp_path)
