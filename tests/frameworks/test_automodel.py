"""The automodel adapter without AutoModel: what it refuses, the recipe that it writes, the log that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.captures.log import LogRecord
from checks.errors import BadRequest, CaptureError
from checks.models import resolve_model
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.frameworks.automodel.adapter import AutoModelAdapter, build_recipe
from workers.frameworks.automodel.logs import read_log

ADAPTER = AutoModelAdapter()


def ask(family: str = "qwen3", **settings: Any) -> RunSpec:
    return RunSpec("automodel", resolve_model(f"tiny:{family}").path, resolve_data("gsm8k_sample"), **settings)


@pytest.mark.usefixtures("_shared_cache")
@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("qwen3", {"precision": "bf16"}, "precision: AutoModel has no autocast over float32 parameters on a CPU"),
        (
            "qwen3_moe",
            {"packing": True},
            "packing: AutoModel is run with packed rows on one process, of models without",
        ),
        (
            "qwen3",
            {"lora": True, "tp_size": 2},
            "lora: AutoModel is run with adapters on one process, of models without",
        ),
        ("qwen3", {"options": ("loss=chunked",), "pp_size": 2}, "options: AutoModel's chunked loss takes no pipeline"),
        ("qwen3", {"resume_after": 1, "resharded": True}, "resharded: AutoModel is resumed in its own layout here"),
        (
            "qwen3",
            {"cp_size": 2},
            "cp_size: AutoModel shares tokens among ranks through Transformer Engine's attention",
        ),
        ("qwen3", {"tp_size": 4}, "tp_size: 4 does not divide num_key_value_heads 2"),
        ("qwen3", {"pp_size": 4}, "pp_size: 4 does not divide num_hidden_layers 2"),
        ("qwen3", {"pp_size": 2, "batch": 1}, "batch: 1 gives 2 stages fewer rows than there are of them"),
        ("qwen3", {"ep_size": 2}, "ep_size: qwen3 has no experts"),
        ("qwen3_moe", {"ep_size": 3}, "ep_size: 3 does not divide num_experts 4|ep_size: 3 does not divide num_local"),
        ("qwen3_moe", {"ep_size": 2, "accumulation": 3}, "accumulation: 2 ranks that share experts cannot share 3"),
        (
            *("qwen3_moe", {"tp_size": 2}),
            "tp_size: AutoModel has no tensor-parallel plan for its own Qwen3MoeForCausalLM .*transformers' class",
        ),
        ("deepseek_v3", {"tp_size": 2}, "give a model of llama, qwen2, qwen3.$"),
        ("qwen3", {"options": ("force_hf=true",)}, "options: force_hf=true is run with qwen3_moe here"),
        ("qwen3_moe", {"options": ("tp_plan=attention",)}, "options: tp_plan=attention names the modules of transf"),
        (
            *("qwen3_moe", {"options": ("force_hf=true",), "ep_size": 2}),
            "ep_size: transformers' class has its experts on every rank",
        ),
        ("qwen3", {"options": ("keep=1",)}, "options: automodel is run with no option 'keep'"),
        ("qwen3", {"dp_size": 2}, "sharding: none does not say what each of 2 ranks holds"),
        ("qwen3", {"dp_size": 2, "pp_size": 2, "sharding": "fsdp2"}, "pp_size: dp_size is above 1 too"),
        ("gemma3_text", {}, "model: AutoModel is not run with gemma3_text here"),
        ("qwen3", {"objective": "dpo"}, "objective: AutoModel, as it is run here, has no dpo"),
        ("qwen3", {"schedule": "linear", "warmup_steps": 3}, "warmup_steps: 3 leaves no step of 3 for the decay"),
    ],
)
def test_what_automodel_is_not_run_with_is_refused(family: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        ADAPTER.check(ask(family, **settings))


@pytest.mark.usefixtures("_shared_cache")
def test_the_recipe_says_what_the_spec_says() -> None:
    spec = ask(batch=3, accumulation=4, steps=5, lr=0.25, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.125, seed=7)
    recipe = build_recipe(spec, rows=Path("/run/config.json"), output=Path("/run/output"))
    scheduler = recipe["step_scheduler"]
    assert (scheduler["global_batch_size"], scheduler["local_batch_size"], scheduler["max_steps"]) == (12, 3, 5)
    optimizer = recipe["optimizer"]
    assert (optimizer["lr"], optimizer["betas"], optimizer["eps"], optimizer["weight_decay"]) == (
        *(0.25, [0.8, 0.95], 1e-6),
        0.125,
    )
    assert optimizer["param_group_overrides"] == [{"pattern": r"(norm|layernorm)\.weight$|\.bias$", "wd_mult": 0.0}]
    assert recipe["seed"] == 7
    assert recipe["model"]["torch_dtype"] == "float32"
    assert recipe["model"]["pretrained_model_name_or_path"] == str(spec.model.resolve())
    assert recipe["dataset"]["config"] == "/run/config.json"
    assert recipe["checkpoint"] == {"enabled": False, "checkpoint_dir": "/run/output"}
    rates = recipe["lr_scheduler"]
    assert (rates["lr_decay_style"], rates["lr_decay_steps"], rates["init_lr"], rates["min_lr"]) == (
        *("constant", 5),
        *(0.0, 0.0),
    )
    assert json.loads(json.dumps(recipe)) == recipe


@pytest.mark.usefixtures("_shared_cache")
def test_each_division_is_asked_of_automodel_in_its_own_words() -> None:
    def divided(family: str = "qwen3", **settings: Any) -> tuple[dict[str, Any], int]:
        recipe = build_recipe(ask(family, **settings), rows=Path("c"), output=Path("o"))
        return recipe["distributed"], recipe["step_scheduler"]["global_batch_size"]

    uncast = {"_target_": "torch.distributed.fsdp.MixedPrecisionPolicy"}
    asked, rows = divided(dp_size=2, sharding="fsdp2")
    assert (asked["strategy"], asked["tp_size"], asked["mp_policy"], rows) == ("fsdp2", 1, uncast, 8)
    assert divided(dp_size=2, sharding="ddp") == ({"strategy": "ddp", "dp_size": 2}, 8)
    asked, rows = divided(pp_size=2)
    assert (asked["pp_size"], asked["pipeline"], rows) == (2, {"pp_schedule": "1f1b", "pp_microbatch_size": 1}, 4)
    asked, rows = divided("qwen3_moe", ep_size=2)
    assert (asked["ep_size"], asked["moe"], rows) == (2, {"mp_policy": uncast}, 4)
    assert "moe_overrides" not in build_recipe(ask("qwen3_moe"), rows=Path("c"), output=Path("o"))["model"]
    biased = build_recipe(ask("deepseek_v3"), rows=Path("c"), output=Path("o"))["model"]
    assert biased["moe_overrides"] == {"gate_bias_update_factor": 0.0, "force_e_score_correction_bias": True}
    dropped = ask("deepseek_v3", options=("force_e_score_correction_bias=false",))
    recipe = build_recipe(dropped, rows=Path("c"), output=Path("o"))
    assert recipe["model"]["moe_overrides"] == {"gate_bias_update_factor": 0.0, "force_e_score_correction_bias": False}
    forced = ask("qwen3_moe", tp_size=2, options=("force_hf=true", "tp_plan=attention"))
    recipe = build_recipe(forced, rows=Path("c"), output=Path("o"))
    assert recipe["model"]["force_hf"] is True
    assert "backend" not in recipe["model"]
    assert recipe["distributed"]["tp_plan"]["model.layers.*.self_attn.q_norm"] == "summed"
    ADAPTER.check(forced)
    asked, _ = divided(tp_size=2, gradient_checkpointing=True)
    assert (asked["tp_size"], asked["activation_checkpointing"]) == (2, True)


@pytest.mark.usefixtures("_shared_cache")
def test_an_environment_without_automodel_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"automodel is not installed in .*; build an environment with plumbline"):
        ADAPTER.prepare(ask(), tmp_path)


def test_the_rate_of_a_step_is_the_one_that_was_logged_before_it(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "loss": 6.5, "grad_norm": 2.0, "lr": 0.002, "mfu": None},
        {"step": 1, "loss": 6.25, "grad_norm": 1.5, "lr": 0.001, "mfu": None},
        {"step": 2, "loss": 6.0, "grad_norm": 1.25, "lr": 0.0, "mfu": None},
    ]
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_log(tmp_path) == (
        LogRecord(1, 6.5, 2.0, None),
        LogRecord(2, 6.25, 1.5, 0.002),
        LogRecord(3, 6.0, 1.25, 0.001),
    )
    assert read_log(tmp_path / "none") == ()
    (tmp_path / "training.jsonl").write_text("{}\n")
    with pytest.raises(CaptureError, match="is no log of AutoModel"):
        read_log(tmp_path)
