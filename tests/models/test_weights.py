"""The tiny models are not degenerate, judged by figures, and their checkpoints hold exactly what was drawn."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from checks.models import FAMILIES
from checks.models.checkpoint import read_config
from checks.models.tiny import SEED, build_tiny
from checks.models.weights import spread_weights
from checks.references.template import load_tokenizer, render_document
from checks.samples import read_samples

TOKENS = 48
VISIBLE = 16
"""queries that see fewer keys are left out: the spread of a few scores says little"""
LINEAR_FAMILIES = {"qwen3_next", "qwen3_5_text"}
ROUTED = {"qwen3_moe", "deepseek_v3", "deepseek_v32", "gpt_oss", "glm4_moe", "qwen3_next"}

families = pytest.mark.parametrize("family", list(FAMILIES))


@cache
def load(family: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(build_tiny(family), dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@cache
def batch(family: str) -> torch.Tensor:
    tokenizer = load_tokenizer(build_tiny(family))
    rows = [render_document(sample, tokenizer).token_ids for sample in read_samples("gsm8k_sample")]
    return torch.tensor([row[:TOKENS] for row in rows if len(row) >= TOKENS][:4])


@cache
def attentions(family: str) -> list[torch.Tensor]:
    with torch.no_grad():
        output = load(family)(input_ids=batch(family), output_attentions=True, use_cache=False)
    return [layer for layer in output.attentions if layer is not None]


@families
def test_attention_scores_spread_by_about_one(family: str) -> None:
    assert len(attentions(family)) == (1 if family in LINEAR_FAMILIES else 2)
    for layer in attentions(family):
        spreads = []
        for query in range(VISIBLE, TOKENS):
            probabilities = layer[:, :, query, :]
            scores = torch.where(probabilities > 0, probabilities.log(), torch.nan)
            centred = scores - scores.nanmean(dim=-1, keepdim=True)
            spreads.append(centred.square().nanmean(dim=-1).sqrt())
        assert 0.8 < float(torch.stack(spreads).mean()) < 2.6


@families
def test_every_pair_of_heads_attends_differently(family: str) -> None:
    for layer in attentions(family):
        for one, other in combinations(layer[:, :, VISIBLE:, :].transpose(0, 1), 2):
            assert float((one - other).abs().sum(-1).mean()) / 2 > 0.15


@families
def test_heads_of_a_projection_have_unequal_norms(family: str) -> None:
    config = load(family).config
    latent = family.startswith("deepseek")
    name = "kv_b_proj" if latent else "v_proj"
    rows = config.qk_nope_head_dim + config.v_head_dim if latent else config.head_dim
    checked = 0
    for path, weight in load(family).named_parameters():
        if path.endswith(f"{name}.weight"):
            norms = weight.detach().unflatten(0, (-1, rows)).norm(dim=(1, 2))
            assert float(norms.max() / norms.min()) > 2
            checked += 1
    assert checked == len(attentions(family))


@families
def test_norm_weights_spread_around_their_neutral_value(family: str) -> None:
    fresh = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(build_tiny(family)))
    neutral = dict(fresh.named_parameters())
    logs = []
    for name, weight in load(family).named_parameters():
        if "norm" in name and name.endswith("weight"):
            fresh_weight = neutral[name].detach()
            assert float(fresh_weight.std()) == 0
            factor = weight.detach() + 1 - fresh_weight.mean()
            assert float(factor.min()) > 0
            logs.append(factor.log())
    assert len(logs) >= 5
    assert 0.25 < float(torch.cat(logs).std()) < 0.35
    assert abs(float(torch.cat(logs).mean())) < 0.05


@families
def test_biases_embeddings_and_matrices_have_the_size_of_trained_ones(family: str) -> None:
    biases = []
    for name, parameter in load(family).named_parameters():
        value = parameter.detach()
        if name.endswith("bias") and not name.endswith("dt_bias"):
            biases.append(value.flatten())
        if name.endswith("embed_tokens.weight"):
            assert 0.0195 < float(value.std()) < 0.0205
        assert float(value.std()) > 0.01
    if biases:
        assert float(torch.cat(biases).abs().min()) > 0
        assert 0.08 < float(torch.cat(biases).std()) < 0.12
    for name, buffer in load(family).named_buffers():
        if name.endswith("e_score_correction_bias"):
            assert 0.01 < float(buffer.std()) < 0.1


@pytest.mark.parametrize("family", sorted(ROUTED))
def test_router_logits_spread_and_use_every_expert(family: str) -> None:
    model, seen = load(family), []

    def look(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        hidden = args[0].reshape(-1, args[0].shape[-1])
        seen.append(hidden @ module.weight.T + getattr(module, "bias", torch.zeros(1)))

    routers = [m for name, m in model.named_modules() if name.endswith(("mlp.gate", "mlp.router"))]
    handles = [router.register_forward_pre_hook(look) for router in routers]
    with torch.no_grad():
        model(input_ids=batch(family), use_cache=False)
    for handle in handles:
        handle.remove()
    assert len(seen) == (1 if family in {"deepseek_v3", "deepseek_v32", "glm4_moe"} else 2)
    for logits in seen:
        assert 0.8 < float(logits.std(dim=-1).mean()) < 2.5
        assert logits.argmax(dim=-1).unique().numel() == 4


@families
def test_the_first_loss_is_near_that_of_guessing(family: str) -> None:
    with torch.no_grad():
        loss = load(family)(input_ids=batch(family), labels=batch(family), use_cache=False).loss
    assert abs(float(loss) - math.log(512)) < 1.5


@families
def test_every_layer_receives_a_gradient(family: str) -> None:
    model = load(family)
    model.zero_grad(set_to_none=True)
    model(input_ids=batch(family), labels=batch(family), use_cache=False).loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or float(p.grad.norm()) == 0]
    model.zero_grad(set_to_none=True)
    # The indexer selects tokens and is not differentiable (arXiv:2512.02556 trains it with a loss of its own).
    assert [name for name in silent if ".indexer." not in name] == []


@families
def test_the_checkpoint_reloads_to_exactly_the_weights_of_its_seed(family: str) -> None:
    drawn = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(build_tiny(family)), dtype=torch.float32)
    spread_weights(drawn, seed=SEED)
    loaded = load(family).state_dict()
    expected = drawn.state_dict()
    assert loaded.keys() == expected.keys()
    assert [name for name in loaded if not torch.equal(loaded[name], expected[name])] == []


def test_another_seed_draws_other_weights_everywhere() -> None:
    config = AutoConfig.from_pretrained(build_tiny("qwen2"))
    one, other = (AutoModelForCausalLM.from_config(config, dtype=torch.float32) for _ in range(2))
    spread_weights(one, seed=1)
    spread_weights(other, seed=2)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert not any(torch.equal(first, second) for first, second in pairs)


@families
def test_a_tiny_model_has_the_size_that_is_promised(family: str) -> None:
    config = read_config(build_tiny(family))
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == (family, 2, 64)
    assert (config["num_attention_heads"], config["vocab_size"], config["max_position_embeddings"]) == (4, 512, 2048)
    assert config["num_key_value_heads"] == (4 if family.startswith("deepseek") else 2)
    assert config["architectures"] == [type(load(family)).__name__]
