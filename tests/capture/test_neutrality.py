"""The recorder does not change the run, and records Hugging Face's frameworks as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.hf_variants import POSITIONS, PROMPT, ROUTED, TRAINED, VARIANTS, rows
from tests.capture.running import Recorded, run_plain, run_recorded
from workers.frameworks.interpreter import framework_python

SCRIPT = str(Path(__file__).with_name("hf_variants.py"))
LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    out = tmp_path_factory.mktemp("recorded")
    options = ("--steps", "1,2,3", "--full", "--modules", rf"{LAYER}|.*_norm|.*q_proj")
    done = run_recorded(out / "capture", sys.executable, SCRIPT, str(out / "results.json"), options=options)
    assert done.code == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def with_recorder(recorded: Recorded) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((recorded.out.parent / "results.json").read_text())
    return results


@pytest.fixture(scope="module")
def without_recorder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("plain") / "results.json"
    done = run_plain(framework_python(), SCRIPT, str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads(out.read_text())
    return results


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_steps_are_bitwise_the_same_with_and_without_the_recorder(
    variant: str, with_recorder: dict[str, Any], without_recorder: dict[str, Any]
) -> None:
    assert with_recorder[variant] == without_recorder[variant]
    assert len(with_recorder[variant]["losses"]) == 3
    assert len({json.dumps(result) for result in without_recorder.values()}) == len(VARIANTS)


def test_every_variant_is_recorded_whole(recorded: Recorded) -> None:
    manifest = recorded.manifest
    assert manifest["missing"] == []
    assert [entry["rank"] for entry in manifest["ranks"]] == list(range(len(VARIANTS)))
    assert all([record["step"] for record in entry["steps"]] == [1, 2, 3] for entry in manifest["ranks"])


@pytest.mark.parametrize("variant", TRAINED)
def test_the_batch_and_its_targets_are_the_rows_that_were_given(variant: str, recorded: Recorded) -> None:
    known = {tuple(row["input_ids"]) for row in rows()}
    wanted = {"rank": VARIANTS.index(variant), "step": 2}
    for micro_batch in (0, 1):
        tokens = recorded.tensor("full", kind="batch", name="input_ids", micro_batch=micro_batch, **wanted)
        assert {tuple(row) for row in tokens.tolist()} <= known
        target = recorded.tensor("full", kind="target", micro_batch=micro_batch, **wanted)
        assert torch.equal(target[:, PROMPT - 1 : POSITIONS - 1], tokens[:, PROMPT:])
        assert int((target != -100).sum()) == 2 * (POSITIONS - PROMPT)


@pytest.mark.parametrize("variant", TRAINED)
def test_the_scalar_back_propagated_is_the_mean_over_the_steps_tokens(variant: str, recorded: Recorded) -> None:
    rank = VARIANTS.index(variant)
    for micro in recorded.step(1, rank=rank)["micro_batches"]:
        losses = recorded.tensor("full", kind="token_loss", micro_batch=micro["index"], rank=rank, step=1)
        counted = 4 * (POSITIONS - PROMPT)
        assert micro["num_items_in_batch"] == counted
        assert micro["backward"] == pytest.approx(float(losses.sum()) / counted, rel=1e-6)
        assert micro["loss_source"] == ("log_probs" if variant.startswith("trl") else "cross_entropy")


@pytest.mark.parametrize("variant", TRAINED)
def test_precision_checkpointing_and_clipping_are_those_in_force(variant: str, recorded: Recorded) -> None:
    record = recorded.step(3, rank=VARIANTS.index(variant))
    autocast = "torch.bfloat16" if variant.endswith("bf16") else None
    assert record["model"]["autocast"] == autocast
    assert record["model"]["compute_dtype"] == (autocast or "torch.float32")
    assert record["model"]["class"] == "LlamaForCausalLM"
    assert record["model"]["attention"] == "sdpa"
    assert record["model"]["gradient_checkpointing"] is True
    (clip,) = record["clips"]
    assert (clip["after_backward"], clip["max_norm"]) == (2, pytest.approx(0.05))
    assert clip["factor"] < 1
    assert clip["factor_error"] < 1e-5


def test_adapters_have_their_canonical_names_and_the_rest_is_frozen(recorded: Recorded) -> None:
    rank = VARIANTS.index("trainer lora float32")
    record = recorded.step(1, rank=rank)
    base = [f"model.layers.{layer}.self_attn.{projection}" for layer in (0, 1) for projection in ("q_proj", "v_proj")]
    adapters = {f"{path}.lora_{part}.weight" for path in base for part in "AB"}
    assert set(record["trainable"]) == adapters
    assert {f"{path}.weight" for path in base} <= set(record["frozen"])
    assert {entry["name"] for entry in recorded.entries(kind="gradient", rank=rank, step=1)} == adapters
    (entry,) = recorded.entries(kind="gradient", rank=rank, step=1, name=f"{base[0]}.lora_A.weight")
    assert entry["source_name"] == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert record["scalars"][base[0]]["scaling.default"] == 2.0
    assert record["scalars"][base[0]]["class"] == "Linear"
    assert record["scalars"][base[0]]["wrapped_by"] == "peft.tuners.lora.layer.Linear"


def test_norm_epsilon_rope_frequencies_and_configuration_are_among_the_scalars(recorded: Recorded) -> None:
    scalars = recorded.step(1)["scalars"]
    assert scalars["model.layers.0.input_layernorm"]["variance_epsilon"] == 1e-6
    frequencies = scalars["model.rotary_emb"]["inv_freq"]
    assert frequencies == pytest.approx([10_000 ** (-pair / 4) for pair in range(4)], rel=1e-6)
    assert scalars[""]["config"]["rope_parameters.rope_theta"] == 10_000.0
    assert scalars[""]["class"] == "LlamaForCausalLM"


@pytest.mark.parametrize("variant", ["trainer full float32", "trl lora bf16"])
def test_chosen_modules_are_recorded_once_a_micro_batch_under_checkpointing(variant: str, recorded: Recorded) -> None:
    rank = VARIANTS.index(variant)
    for kind in ("module_input", "module_output", "module_output_gradient"):
        found = recorded.entries(kind=kind, rank=rank, name=LAYER, step=1)
        assert [entry["micro_batch"] for entry in found] == [0, 1]
    gradient = recorded.tensor("full", kind="module_output_gradient", rank=rank, name=LAYER, step=1, micro_batch=1)
    assert gradient.shape == (2, POSITIONS, 32)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("family", ROUTED)
def test_router_choices_are_recorded_for_every_token(family: str, recorded: Recorded) -> None:
    rank = VARIANTS.index(f"loop {family}")
    found = recorded.entries(kind="router", rank=rank, step=1, field="indices")
    expected = {1} if ROUTED[family].get("first_k_dense_replace") else {0, 1}
    assert {int(entry["name"].split(".")[2]) for entry in found} == expected
    for entry in found:
        wanted = {"kind": "router", "rank": rank, "step": 1, "name": entry["name"]}
        indices = recorded.tensor("full", field="indices", **wanted)
        weights = recorded.tensor("full", field="weights", **wanted)
        assert indices.shape == weights.shape == (2 * POSITIONS, 2)
        assert bool(((indices >= 0) & (indices < 4)).all())
        assert bool((indices[:, 0] != indices[:, 1]).all())
