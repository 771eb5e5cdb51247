"""Which parameters decay: by the definition, and as transformers' Trainer groups them on the twelve families."""

from __future__ import annotations

import pytest
from transformers import Trainer

from checks.references.optimizer import decays
from tests.references.checkpoints import FAMILIES, build_model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_groups_are_those_of_transformers(family: str) -> None:
    model = build_model(family)
    theirs = set(Trainer.get_decay_parameter_names(None, model))
    ours = {
        name
        for name, parameter in model.named_parameters()
        if decays(name, tuple(parameter.shape), type(model.get_submodule(name.rpartition(".")[0])).__name__)
    }
    listed = {name for name, _ in model.named_parameters()}  # a tied head is listed by neither optimizer
    assert ours == theirs & listed
    assert 0 < len(ours) < len(listed)


@pytest.mark.parametrize(
    ("name", "shape", "module_class", "expected"),
    [
        ("model.embed_tokens.weight", (61, 32), "Embedding", True),
        ("model.layers.0.self_attn.q_proj.weight", (64, 32), "Linear", True),
        ("model.layers.0.self_attn.q_proj.bias", (64,), "Linear", False),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (4, 32), "Linear", True),
        ("model.layers.0.mlp.experts.gate_up_proj", (4, 32, 64), "GptOssExperts", True),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", (4, 64), "GptOssExperts", False),
        ("model.layers.0.linear_attn.dt_bias", (4,), "Qwen3NextGatedDeltaNet", False),
        ("model.layers.0.linear_attn.A_log", (4,), "Qwen3NextGatedDeltaNet", True),
        ("model.layers.0.linear_attn.conv1d.weight", (64, 1, 4), "Conv1d", True),
        ("model.norm.weight", (32,), "Qwen3RMSNorm", False),
        ("model.layers.0.ln_1.weight", (32,), "Scale", False),
        ("model.layers.0.head.weight", (1, 32), "LayerNorm", False),
    ],
)
def test_all_but_norms_and_biases_decay(name: str, shape: tuple[int, ...], module_class: str, expected: bool) -> None:
    assert decays(name, shape, module_class) is expected
