"""The drivers really train: what they log agrees between frameworks and with a plain forward pass."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from checks.captures.log import LogRecord
from checks.references.template import load_tokenizer, render_document
from checks.samples import Sample, read_samples
from tests.frameworks.conftest import MakeSpec
from workers.frameworks import adapter
from workers.frameworks.interpreter import framework_python
from workers.frameworks.trainer import build_arguments
from workers.frameworks.transformers import adapter as transformers_adapter
from workers.frameworks.transformers.logs import read_log

# One process runs them all: importing the libraries takes most of a run's seconds.
RUN_ALL = """
import runpy, sys
for driver, config in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.argv[1:] = [config]
    runpy.run_path(driver, run_name="__main__")
"""
RUNS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain": ("transformers", {"steps": 2}),
    "lora": ("transformers", {"steps": 1, "lora": True, "gradient_checkpointing": True}),
    "assistant": ("transformers", {"steps": 1, "data": "tulu3_sample", "assistant_only": True}),
    "schedule": ("transformers", {"steps": 2, "optimizer": "sgd", "momentum": 0.5, "schedule": "linear"}),
    "params": ("transformers", {"steps": 1, "precision": "bf16_params", "lora": True}),
    "trl": ("trl", {"steps": 2, "batch": 4, "accumulation": 1}),
    "trl-lora": ("trl", {"steps": 1, "lora": True}),
    "trl-assistant": ("trl", {"steps": 1, "data": "tulu3_sample", "assistant_only": True}),
    "trl-packed": ("trl", {"steps": 1, "packing": True}),
    "trl-bf16": ("trl", {"steps": 1, "precision": "bf16", "attention": "eager"}),
    "trl-params": ("trl", {"steps": 1, "precision": "bf16_params", "lora": True}),
}


@pytest.fixture(scope="module")
def logs(make_spec: MakeSpec, shared: Path) -> dict[str, tuple[LogRecord, ...]]:
    directory = shared / "drivers"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            run_drivers(make_spec, directory)
            (directory / "done").touch()
    return {name: read_log(directory / name / "output") for name in RUNS}


def run_drivers(make_spec: MakeSpec, directory: Path) -> None:
    launches = [
        adapter(framework).prepare(make_spec(framework, **changes), directory / name)
        for name, (framework, changes) in RUNS.items()
    ]
    command = [framework_python(), "-c", RUN_ALL, *(part for launch in launches for part in launch.command[2:])]
    environment = {**os.environ, **launches[0].environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_run_logs_each_of_its_steps(logs: dict[str, tuple[LogRecord, ...]]) -> None:
    for name, records in logs.items():
        assert [record.step for record in records] == list(range(1, RUNS[name][1]["steps"] + 1))
        for record in records:
            assert 5.0 < (record.loss or 0) < 9.0
            assert 0.1 < (record.grad_norm or 0) < 100


def test_a_step_of_four_rows_is_the_same_however_it_is_split(logs: dict[str, tuple[LogRecord, ...]]) -> None:
    """transformers with 2 × 2 rows, TRL with 4 × 1: same rows, same objective, one token mean."""
    for one, other in zip(logs["plain"], logs["trl"], strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)


def test_adapters_and_masks_are_the_same_in_both_frameworks(logs: dict[str, tuple[LogRecord, ...]]) -> None:
    for one, other in (("lora", "trl-lora"), ("assistant", "trl-assistant")):
        assert logs[one][0].loss == pytest.approx(logs[other][0].loss, rel=1e-5)
        assert logs[one][0].grad_norm == pytest.approx(logs[other][0].grad_norm, rel=1e-5)
    assert logs["lora"][0].loss != pytest.approx(logs["plain"][0].loss, rel=1e-3)


def test_bf16_moves_the_loss_by_its_rounding_and_no_more(logs: dict[str, tuple[LogRecord, ...]]) -> None:
    for one, other in (("trl-bf16", "plain"), ("params", "lora"), ("trl-params", "trl-lora")):
        difference = abs((logs[one][0].loss or 0) - (logs[other][0].loss or 0))
        assert 1e-6 < difference < 2e-2


def test_a_linear_schedule_reaches_zero_after_the_last_step(logs: dict[str, tuple[LogRecord, ...]]) -> None:
    assert [record.learning_rate for record in logs["schedule"]] == [1e-3, 5e-4]
    assert [record.learning_rate for record in logs["plain"]] == [1e-3, 1e-3]


def test_sgd_takes_another_path_than_adamw(logs: dict[str, tuple[LogRecord, ...]]) -> None:
    assert logs["schedule"][0].loss == logs["plain"][0].loss
    assert logs["schedule"][1].loss != pytest.approx(logs["plain"][1].loss, rel=1e-4)


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    found = spec_from_file_location("transformers_driver", transformers_adapter.DRIVER)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


FORMS = [
    *read_samples("tulu3_sample"),
    Sample(0, 1, "text", text="Once upon a time"),
    Sample(0, 1, "text", text="Once upon a time<|im_end|>"),
    Sample(0, 1, "prompt_completion", prompt="7 hens", completion=" lay"),
    Sample(0, 1, "prompt_completion", prompt="", completion="lay"),
    Sample(0, 1, "prompt_completion", prompt="He", completion="r"),
]


@pytest.mark.parametrize("assistant_only", [False, True])
def test_the_transformers_driver_tokenises_as_the_independent_rendering(
    driver: ModuleType, assistant_only: bool, make_spec: MakeSpec
) -> None:
    model = make_spec().model
    tokenizer, plain = AutoTokenizer.from_pretrained(model), load_tokenizer(model)
    for sample in FORMS:
        if assistant_only and sample.form == "text":
            continue
        row: dict[str, Any] = {
            "messages": {"messages": [{"role": role, "content": content} for role, content in sample.messages]},
            "text": {"text": sample.text},
            "prompt_completion": {"prompt": sample.prompt, "completion": sample.completion},
        }[sample.form]
        expected = render_document(sample, plain)
        example = driver.tokenize(row, tokenizer, {"assistant_only": assistant_only, "seq_len": 60})
        learned = expected.assistant if assistant_only else (True,) * len(expected.token_ids)
        labels = [token if kept else -100 for token, kept in zip(expected.token_ids, learned, strict=True)]
        assert example == {"input_ids": list(expected.token_ids)[:60], "labels": labels[:60]}


def test_the_collator_pads_on_the_right(driver: ModuleType) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}]
    batch = driver.collate(rows, pad_token_id=3)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7], [8, 3, 3]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "labels": [[-100, 6, 7], [8, -100, -100]],
    }


def test_micro_batches_hold_different_token_counts_in_an_order_that_their_size_leaves_alone(
    driver: ModuleType, make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec(batch=2, accumulation=2)
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32)
    config = {"assistant_only": False, "seq_len": spec.seq_len}
    run = adapter("transformers").prepare(spec, tmp_path)
    rows = [json.loads(line) for line in (Path(run.command[-1]).parent / "rows.jsonl").read_text().splitlines()]
    examples = [driver.tokenize(row, tokenizer, config) for row in rows]

    def order(batch: int, accumulation: int) -> list[list[list[int]]]:
        arguments = build_arguments(make_spec(batch=batch, accumulation=accumulation), output=tmp_path)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**arguments, use_cpu=True, remove_unused_columns=False),
            train_dataset=examples,
            data_collator=lambda picked: picked,
        )
        return [[example["input_ids"] for example in picked] for picked in trainer.get_train_dataloader()]

    split, whole = order(2, 2), order(4, 1)
    assert [first + second for first, second in zip(split[::2], split[1::2], strict=True)] == whole
    counts = [sum(map(len, micro_batch)) for micro_batch in split]
    for step in range(3):
        assert counts[2 * step] != counts[2 * step + 1]
