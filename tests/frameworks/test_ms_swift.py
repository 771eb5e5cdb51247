"""ms-swift: what its adapter asks of it, and what it logs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from checks.captures.log import LogRecord
from checks.errors import BadRequest, CaptureError
from tests.frameworks.conftest import MakeSpec
from workers.frameworks.interpreter import VARIABLE
from workers.frameworks.ms_swift.adapter import MsSwiftAdapter
from workers.frameworks.ms_swift.logs import read_log
from workers.frameworks.shims import VARIABLE as SHIMS

SHIM = Path(__file__).parent / "shims" / "ms_swift_packing.py"

DPO: dict[str, object] = {"objective": "dpo", "data": "preferences_sample"}
GRPO: dict[str, object] = {"objective": "grpo", "data": "preferences_sample"}
PROMPTS = {"prompt": "Two and two is", "completion": " four."}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that has a module `swift`, of which an adapter looks for no more than that."""
    (tmp_path / "swift").mkdir()
    (tmp_path / "swift" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(VARIABLE, make_python(tmp_path))


def make_python(folder: Path) -> str:
    """A name of this interpreter's that nothing was asked about before: what is installed is asked once a name."""
    python = folder / "python"
    python.symlink_to(sys.executable)
    return str(python)


def asked_of(spec_arguments: Path) -> dict[str, object]:
    config = json.loads(spec_arguments.read_text())
    arguments: dict[str, object] = config["arguments"]
    return arguments


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("data", "assistant_only", "wanted"),
    [
        ("tulu3_sample", False, {"template": "chatml", "template_backend": "jinja", "loss_scale": "all"}),
        ("tulu3_sample", True, {"template": "chatml", "loss_scale": "default"}),
        (PROMPTS, False, {"use_chat_template": False, "loss_scale": "all"}),
        (PROMPTS, True, {"use_chat_template": False, "loss_scale": "default"}),
        ({"text": "Two and two is four."}, False, {"use_chat_template": False, "loss_scale": "all"}),
    ],
)
def test_which_tokens_count_is_said_by_template_and_loss_scale(
    data: str | dict[str, str], assistant_only: bool, wanted: dict[str, object], make_spec: MakeSpec, tmp_path: Path
) -> None:
    if isinstance(data, dict):
        (tmp_path / "rows.jsonl").write_text(json.dumps(data) + "\n")
        data = str(tmp_path / "rows.jsonl")
    spec = make_spec("ms_swift", data=data, assistant_only=assistant_only)
    launch = MsSwiftAdapter().prepare(spec, tmp_path / "run")
    arguments = asked_of(tmp_path / "run" / "config.json")
    assert wanted.items() <= arguments.items()
    assert ("template_backend" in arguments) is ("template_backend" in wanted)
    assert launch.command[-2].endswith("ms_swift/train.py")


@pytest.mark.usefixtures("installed")
def test_every_default_of_its_own_is_stated(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec("ms_swift", lora=True, lora_alpha=3.0, seq_len=77, precision="bf16_params", attention="eager")
    MsSwiftAdapter().prepare(spec, tmp_path / "run")
    arguments = asked_of(tmp_path / "run" / "config.json")
    wanted = {
        "tuner_type": "lora",
        "lora_rank": 4,
        "lora_alpha": 3.0,
        "target_modules": ["q_proj", "v_proj"],
        "init_weights": "false",
        "torch_dtype": "bfloat16",
        "bf16": False,
        "attn_impl": "eager",
        "max_length": 77,
        "truncation_strategy": "right",
        "split_dataset_ratio": 0.0,
        "report_to": "none",
        "packing": False,
    }
    assert {name: arguments[name] for name in wanted} == wanted


@pytest.mark.usefixtures("installed")
def test_preferences_are_two_conversations_whose_last_answers_count(make_spec: MakeSpec, tmp_path: Path) -> None:
    launch = MsSwiftAdapter().prepare(make_spec("ms_swift", **DPO, beta=0.3, lora=True), tmp_path / "run")
    arguments = asked_of(tmp_path / "run" / "config.json")
    wanted = {"rlhf_type": "dpo", "beta": 0.3, "loss_type": "sigmoid", "template": "chatml", "loss_scale": "last_round"}
    assert wanted.items() <= arguments.items()
    assert "template_backend" not in arguments  # it cannot tell answers apart
    row = json.loads((tmp_path / "run" / "rows.jsonl").read_text().splitlines()[0])
    assert row["messages"][:-1] == row["rejected_messages"][:-1]
    assert row["messages"][-1]["role"] == row["rejected_messages"][-1]["role"] == "assistant"
    assert row["messages"][-1] != row["rejected_messages"][-1]
    assert [file.name for file in launch.hooks] == ["hooks.py"]


@pytest.mark.usefixtures("installed")
def test_preferences_of_text_are_a_question_and_its_answers(make_spec: MakeSpec, tmp_path: Path) -> None:
    rows = {"prompt": "Two and two is", "chosen": " four.", "rejected": " five."}
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows) + "\n")
    spec = make_spec("ms_swift", objective="dpo", data=str(tmp_path / "rows.jsonl"))
    MsSwiftAdapter().prepare(spec, tmp_path / "run")
    assert asked_of(tmp_path / "run" / "config.json")["use_chat_template"] is False
    question = {"role": "user", "content": "Two and two is"}
    assert json.loads((tmp_path / "run" / "rows.jsonl").read_text()) == {
        "messages": [question, {"role": "assistant", "content": " four."}],
        "rejected_messages": [question, {"role": "assistant", "content": " five."}],
    }


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            {"grpo_loss": "gspo"},
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        ({"grpo_loss": "dr_grpo"}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        (
            {"temperature": 0.8, "num_iterations": 3, "beta": 0.2},
            {"temperature": 0.8, "num_iterations": 3, "beta": 0.2, "loss_type": "grpo", "scale_rewards": "group"},
        ),
    ],
)
def test_grpos_options_say_the_variant(
    settings: dict[str, object], wanted: dict[str, object], make_spec: MakeSpec, tmp_path: Path
) -> None:
    MsSwiftAdapter().prepare(make_spec("ms_swift", **GRPO, **settings), tmp_path / "run")
    arguments = asked_of(tmp_path / "run" / "config.json")
    assert wanted.items() <= arguments.items()
    assert arguments["steps_per_generation"] == 2
    assert str(arguments["external_plugins"]).endswith("rewards.py']")


@pytest.mark.usefixtures("installed")
def test_prompts_that_leave_no_room_for_a_completion_are_left_out(make_spec: MakeSpec, tmp_path: Path) -> None:
    rows = [{"prompt": "a " * length, "completion": "b"} for length in (4, 60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = make_spec("ms_swift", objective="grpo", data=str(tmp_path / "rows.jsonl"), seq_len=40)
    MsSwiftAdapter().prepare(spec, tmp_path / "run")
    (kept,) = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    assert kept == {"messages": [{"role": "user", "content": "a " * 4}], "known": "a a a a \nb"}
    with pytest.raises(BadRequest, match="no prompt has 1 tokens or fewer, which seq_len=17 leaves"):
        MsSwiftAdapter().prepare(replace(spec, seq_len=17), tmp_path / "none")


@pytest.mark.usefixtures("installed")
def test_ranks_that_share_positions_are_hooked_and_a_probed_grpo_run_evaluates_nothing(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    launch = MsSwiftAdapter().prepare(make_spec("ms_swift", cp_size=2), tmp_path / "run")
    assert asked_of(tmp_path / "run" / "config.json")["sequence_parallel_size"] == 2
    assert "--nproc-per-node=2" in launch.command
    assert [file.name for file in launch.hooks] == ["hooks.py"]
    MsSwiftAdapter().prepare(make_spec("ms_swift", **GRPO, probed=True), tmp_path / "grpo")
    config = json.loads((tmp_path / "grpo" / "config.json").read_text())
    assert "evaluated_rows" not in config
    assert "eval_on_start" not in config["arguments"]
    assert config["stop_every"] == 16


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"packing": True}, "packing: ms-swift has packing with flash attention only, not with sdpa"),
        ({"padding_free": True}, "padding_free: ms-swift has padding_free with flash attention only"),
        ({"tp_size": 2}, "tp_size: swift sft divides nothing along it"),
        ({"dp_size": 2, "sharding": "fsdp2"}, "sharding: fsdp2 is ignored by transformers' Trainer on a CPU"),
        (
            {"objective": "kto", "data": "preferences_sample"},
            "objective: ms-swift is run here with sft, dpo, grpo",
        ),
        ({**DPO, "assistant_only": True}, "assistant_only: true has no meaning for dpo"),
        ({**GRPO, "num_generations": 3}, "num_generations: 3 does not divide the 4 rows of a step"),
        ({**GRPO, "max_completion_length": 128}, "max_completion_length: 128 leaves no room for a prompt"),
        ({**DPO, "cp_size": 2}, "cp_size: is run here with sft, not with dpo"),
        ({"cp_size": 2, "attention": "eager"}, "cp_size: ms-swift divides the positions for sdpa"),
        ({"model": "tiny:qwen3_5_text"}, "model: ms-swift has no text model of qwen3_5_text"),
        ({"cp_size": 3}, "cp_size: 3 does not divide 2 key-value heads"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    settings: dict[str, object], sentence: str, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHIMS, raising=False)
    with pytest.raises(BadRequest) as caught:
        MsSwiftAdapter().check(make_spec("ms_swift", **settings))
    assert str(caught.value).startswith(sentence)


def test_a_stand_in_that_lifts_the_refusal_lets_it_pack(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHIMS, str(SHIM))
    MsSwiftAdapter().check(make_spec("ms_swift", packing=True))
    MsSwiftAdapter().check(make_spec("ms_swift", padding_free=True))


def test_where_it_is_not_installed_a_sentence_says_how_to_install_it(make_spec: MakeSpec, tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        MsSwiftAdapter().prepare(make_spec("ms_swift"), tmp_path / "run")
    assert str(caught.value).startswith("framework: ms_swift is not installed in ")
    assert "plumbline env create ms-swift==" in str(caught.value)
    assert not (tmp_path / "run").exists()


LINES = (
    {"loss": 6.884, "grad_norm": 9.66, "learning_rate": 0.001, "global_step/max_steps": "1/2"},
    {"eval_loss": 5.5, "global_step/max_steps": "1/2"},
    {"loss": 6.791, "grad_norm": 8.6, "learning_rate": 0.002, "global_step/max_steps": "2/2"},
    {"train_runtime": 0.5, "train_loss": 6.8, "global_step/max_steps": "2/2"},
)


def write_log(folder: Path, *lines: object) -> Path:
    (folder / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_its_log_counts_steps_in_words(tmp_path: Path) -> None:
    assert read_log(write_log(tmp_path, *LINES)) == (
        LogRecord(1, 6.884, 9.66, 0.001, seconds=0.25),
        LogRecord(1, None, None, None, eval_loss=5.5),
        LogRecord(2, 6.791, 8.6, 0.002, seconds=0.5),
    )


def test_a_run_that_ended_gives_exact_numbers_in_its_last_line(tmp_path: Path) -> None:
    exact = {"log_history": [{"loss": 6.8844904, "grad_norm": 9.6, "learning_rate": 0.001, "step": 1}]}
    assert read_log(write_log(tmp_path, *LINES, exact)) == (LogRecord(1, 6.8844904, 9.6, 0.001),)


def test_a_log_that_is_none_is_named(tmp_path: Path) -> None:
    assert read_log(tmp_path) == ()  # of a run that broke off before its first step
    (tmp_path / "logging.jsonl").write_text("{\n")
    with pytest.raises(CaptureError, match="is no log of ms-swift"):
        read_log(tmp_path)
