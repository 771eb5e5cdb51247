"""What an adapter refuses, in one sentence that names the setting, and what it writes for what it accepts."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.errors import BadRequest
from checks.models import resolve_model
from checks.samples import read_samples
from checks.spec import RunSpec
from tests.frameworks.conftest import MakeSpec
from workers.frameworks import adapter, default_settings, names
from workers.frameworks.interpreter import framework_python
from workers.frameworks.trainer import build_arguments, build_environment, build_lora

both = pytest.mark.parametrize("framework", ["transformers", "trl"])


def test_every_framework_is_known_by_name() -> None:
    own = ("automodel", "command", "megatron_core", "megatron_swift", "miles", "ms_swift")
    installed = (*own, "plain", "transformers", "trl")
    assert names() == installed
    assert tuple(adapter(name).name for name in names()) == names()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("transfomers", "use transformers."), ("TRL", "use trl."), ("", f"use {' or '.join(names())}.")],
)
def test_an_unknown_framework_gets_the_nearest_name(name: str, remedy: str) -> None:
    with pytest.raises(BadRequest) as caught:
        adapter(name)
    assert str(caught.value) == f"framework: {name!r} is not known; {remedy}"


def test_a_family_states_the_settings_it_needs() -> None:
    assert default_settings("qwen3") == {}
    assert default_settings("gpt_oss") == {"attention": "eager"}
    assert default_settings("deepseek_v3") == default_settings("deepseek_v32")
    assert default_settings("deepseek_v3") == {"lora_targets": "q_b_proj,kv_b_proj"}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, "steps: 0 is out of range; set steps to 1 or more."),
    ({"batch": 0}, "batch: 0 is out of range; set batch to 1 or more."),
    ({"accumulation": -1}, "accumulation: -1 is out of range; set accumulation to 1 or more."),
    ({"seq_len": 1}, "seq_len: 1 is out of range; set seq_len to 2 or more."),
    ({"seq_len": 2049}, "seq_len: 2049 exceeds the 2048 positions of"),
    ({"lora": True, "lora_r": 0}, "lora_r: 0 is out of range; set lora_r to 1 or more."),
    ({"lr": math.nan}, "lr: nan is out of range; set lr to a finite number of 0 or more."),
    ({"lr": -1e-3}, "lr: -0.001 is out of range"),
    ({"eps": -1.0}, "eps: -1.0 is out of range"),
    ({"max_grad_norm": math.inf}, "max_grad_norm: inf is out of range"),
    ({"weight_decay": -0.1}, "weight_decay: -0.1 is out of range"),
    ({"lora_alpha": -1.0}, "lora_alpha: -1.0 is out of range"),
    ({"beta1": 1.0}, "beta1: 1.0 is out of range; set beta1 to 0 or more and under 1."),
    ({"beta2": -0.1}, "beta2: -0.1 is out of range"),
    ({"warmup_steps": -1}, "warmup_steps: -1 is out of range"),
    ({"seed": 2**32}, "seed: 4294967296 is out of range"),
    ({"momentum": 0.9}, "momentum: 0.9 has no meaning for adamw; set optimizer=sgd too."),
    ({"lora": True, "lora_targets": ()}, "lora_targets: is empty; name at least one module, such as q_proj."),
    (
        {"lora": True, "lora_targets": ("q_prj",)},
        "lora_targets: the model has no matrix called q_prj; use q_proj.",
    ),
    (
        {"lora": True, "lora_targets": ("norm",)},
        "lora_targets: the model has no matrix called norm; use down_proj or",
    ),
    ({"lora_targets": ("k_proj",)}, "lora_targets: k_proj has no meaning where lora is false; set lora=true too."),
    ({"lora_r": 8}, "lora_r: 8 has no meaning where lora is false; set lora=true too."),
    ({"lora_alpha": 16.0}, "lora_alpha: 16.0 has no meaning where lora is false; set lora=true too."),
    ({"model": "tiny:gpt_oss"}, "attention: sdpa cannot express the attention sinks of gpt_oss; set attention=eager."),
]


@both
@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[str(changes) for changes, _ in BAD])
def test_a_run_that_cannot_be_is_refused(
    framework: str, changes: dict[str, Any], sentence: str, make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec(framework, **changes)
    with pytest.raises(BadRequest) as caught:
        adapter(framework).prepare(spec, tmp_path / "scratch")
    assert str(caught.value).startswith(sentence)
    assert not (tmp_path / "scratch").exists()


GOOD: list[dict[str, Any]] = [
    {"steps": 1, "batch": 1, "accumulation": 1, "seq_len": 2},
    {"seq_len": 2048, "beta1": 0.0, "beta2": 0.0, "eps": 0.0, "lr": 0.0, "weight_decay": 0.0, "max_grad_norm": 0.0},
    {"optimizer": "sgd", "momentum": 0.9, "seed": 2**32 - 1, "warmup_steps": 0},
    {"model": "tiny:gpt_oss", "attention": "eager"},
    {"model": "tiny:deepseek_v3", "lora": True, "lora_targets": ("q_b_proj", "kv_b_proj")},
    {"model": "tiny:deepseek_v3", "lora_targets": ("q_b_proj", "kv_b_proj")},  # the family's own, and nobody's wish
]


@both
@pytest.mark.parametrize("changes", GOOD, ids=str)
def test_the_edges_of_every_range_are_accepted(framework: str, changes: dict[str, Any], make_spec: MakeSpec) -> None:
    adapter(framework).check(make_spec(framework, **changes))


def test_transformers_refuses_to_pack(make_spec: MakeSpec) -> None:
    with pytest.raises(BadRequest, match=r"packing: transformers' Trainer does not pack; set packing=false or"):
        adapter("transformers").check(make_spec(packing=True))
    adapter("trl").check(make_spec("trl", packing=True))


def test_trl_refuses_an_adapter_on_the_head(make_spec: MakeSpec) -> None:
    changes = {"lora": True, "lora_targets": ("q_proj", "lm_head")}
    with pytest.raises(BadRequest, match=r"lora_targets: TRL computes log-probabilities from lm_head.weight"):
        adapter("trl").check(make_spec("trl", **changes))
    adapter("transformers").check(make_spec(**changes))


@both
def test_assistant_only_needs_a_form_and_a_template_with_an_assistant(
    framework: str, make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "Once"}\n')
    with pytest.raises(BadRequest, match=r"assistant_only: true has no meaning for .*text.jsonl, which holds plain"):
        adapter(framework).check(make_spec(framework, data=str(tmp_path / "text.jsonl"), assistant_only=True))
    model = Path(shutil.copytree(resolve_model("tiny:qwen3").path, tmp_path / "model"))
    template = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(re.sub(r"{%-? *(end)?generation *-?%}", "", template))
    spec = make_spec(framework, model=str(model), assistant_only=True)
    with pytest.raises(BadRequest, match=r"assistant_only: true needs {% generation %} in the chat template of"):
        adapter(framework).check(spec)
    (model / "chat_template.jinja").unlink()
    with pytest.raises(BadRequest, match=r"has no chat template, and the data are messages; add chat_template.jinja"):
        adapter(framework).check(spec)
    adapter(framework).check(make_spec(framework, model=str(model), data=str(tmp_path / "text.jsonl")))


def test_the_arguments_say_what_the_spec_says(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(
        steps=7, batch=3, accumulation=5, lr=2e-3, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2,
        max_grad_norm=0.5, schedule="cosine", warmup_steps=2, seed=11, gradient_checkpointing=True,
    )  # fmt: skip
    arguments = build_arguments(spec, output=tmp_path)
    expected = {
        "output_dir": str(tmp_path), "max_steps": 7, "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 5, "learning_rate": 2e-3, "lr_scheduler_type": "cosine", "warmup_steps": 2,
        "optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.2,
        "max_grad_norm": 0.5, "bf16": False, "fp16": False, "gradient_checkpointing": True, "seed": 11,
        "data_seed": 11, "save_strategy": "no", "logging_strategy": "steps", "logging_steps": 1,
        "logging_nan_inf_filter": False, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }  # fmt: skip
    assert arguments == expected


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "name"),
    [
        ("constant", 0, "constant"),
        ("constant", 3, "constant_with_warmup"),
        ("linear", 3, "linear"),
        ("cosine", 0, "cosine"),
    ],
)
def test_a_schedule_with_warmup_is_one_that_warms_up(
    schedule: Any, warmup_steps: int, name: str, make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec(schedule=schedule, warmup_steps=warmup_steps)
    assert build_arguments(spec, output=tmp_path)["lr_scheduler_type"] == name


def test_sgd_takes_its_momentum(make_spec: MakeSpec, tmp_path: Path) -> None:
    arguments = build_arguments(make_spec(optimizer="sgd", momentum=0.9), output=tmp_path)
    assert (arguments["optim"], arguments["optim_args"]) == ("sgd", "momentum=0.9")


@pytest.mark.parametrize(
    ("precision", "dtype", "autocast"),
    [("float32", "float32", False), ("bf16", "float32", True), ("bf16_params", "bfloat16", False)],
)
@both
def test_precision_is_parameters_and_autocast(
    framework: str, precision: Any, dtype: str, autocast: bool, make_spec: MakeSpec, tmp_path: Path
) -> None:
    launch = adapter(framework).prepare(make_spec(framework, precision=precision), tmp_path)
    config = json.loads(Path(launch.command[-1]).read_text())
    assert (config["dtype"], config["arguments"]["bf16"]) == (dtype, autocast)


def test_adapters_start_from_two_random_factors(make_spec: MakeSpec) -> None:
    assert build_lora(make_spec()) is None
    assert build_lora(make_spec(lora=True, lora_r=2, lora_alpha=6.0, lora_targets=("k_proj",))) == {
        "r": 2,
        "lora_alpha": 6.0,
        "target_modules": ["k_proj"],
        "lora_dropout": 0.0,
        "init_lora_weights": False,
        "task_type": "CAUSAL_LM",
    }


@both
def test_a_launch_is_complete_and_relative_to_nothing(
    framework: str, make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    launch = adapter(framework).prepare(make_spec(framework, lora=True), Path("scratch"))
    scratch = tmp_path / "scratch"
    python, unbuffered, driver, config_file = launch.command
    assert (python, unbuffered, config_file) == (framework_python(), "-u", str(scratch / "config.json"))
    assert Path(driver).parts[-3:] == ("frameworks", framework, "train.py")
    assert sorted(path.name for path in scratch.iterdir()) == ["config.json", "rows.jsonl"]
    assert launch.output == scratch / "output"
    assert re.search(launch.full_parameters or "", "model.layers.0.self_attn.q_proj.lora_A.weight")
    assert not re.search(launch.full_parameters or "", "model.layers.0.self_attn.q_proj.weight")
    config = json.loads((scratch / "config.json").read_text())
    assert Path(config["model"]) == resolve_model("tiny:qwen3").path
    assert (config["seq_len"], config["attention"], config["assistant_only"]) == (128, "sdpa", False)


def test_full_training_keeps_no_parameter_whole(make_spec: MakeSpec, tmp_path: Path) -> None:
    assert adapter("transformers").prepare(make_spec(), tmp_path).full_parameters is None


ROWS = [
    {"messages": [{"role": "user", "content": "a\u2028é"}, {"role": "assistant", "content": "b"}], "id": 3},
    {"prompt": "p", "completion": "c", "extra": 1},
    {"text": "t", "extra": 1},
    {"question": "q", "answer": "a"},
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: next(iter(row)))
def test_rows_reach_the_driver_in_their_own_columns_alone(
    row: dict[str, Any], make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    adapter("trl").prepare(make_spec("trl", data=str(tmp_path / "data.jsonl")), tmp_path / "run")
    (written,) = read_samples(tmp_path / "run" / "rows.jsonl")
    assert written == read_samples(tmp_path / "data.jsonl")[0]
    columns = json.loads((tmp_path / "run" / "rows.jsonl").read_text()).keys()
    assert columns == ({"messages"} if "question" in row else row.keys() - {"id", "extra"})


@pytest.mark.parametrize(
    ("data", "assistant_only", "expected"),
    [
        (ROWS[0], False, (False, False)),
        (ROWS[0], True, (True, False)),
        (ROWS[1], False, (False, False)),
        (ROWS[1], True, (False, True)),
    ],
)
def test_trl_is_told_which_tokens_to_learn(
    data: dict[str, Any], assistant_only: bool, expected: tuple[bool, bool], make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps(data) + "\n")
    spec = make_spec("trl", data=str(tmp_path / "data.jsonl"), assistant_only=assistant_only, packing=True, seq_len=99)
    config = json.loads(Path(adapter("trl").prepare(spec, tmp_path / "run").command[-1]).read_text())
    arguments = config["arguments"]
    assert (arguments["assistant_only_loss"], arguments["completion_only_loss"]) == expected
    assert (arguments["packing"], arguments["packing_strategy"], arguments["max_length"]) == (True, "bfd", 99)


@pytest.mark.parametrize(("visible", "first"), [(None, "0"), ("3,1", "3"), ("", ""), ("GPU-a1", "GPU-a1")])
def test_one_device_is_in_sight(visible: str | None, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    environment = build_environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == first
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"


@pytest.mark.parametrize("folder", names())
def test_every_framework_has_the_same_files_and_its_driver_knows_no_plumbline(folder: str) -> None:
    directory = Path(sys.modules["workers.frameworks"].__file__ or "").parent / folder
    files = {path.name for path in directory.iterdir() if path.is_file()}
    assert files >= {"__init__.py", "adapter.py", "names.py", "logs.py", "environment.toml", "README.md"}
    if folder == "command":
        return  # its driver is the user's
    assert not re.search(r"\b(checks|workers|plumbline_capture)\b", (directory / "train.py").read_text())


def test_the_spec_of_these_tests_is_the_default_one(make_spec: MakeSpec) -> None:
    spec = make_spec()
    assert spec == RunSpec("transformers", spec.model, spec.data)
