"""What the adapters built on Hugging Face's Trainer share: its arguments, the run's files and the command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.probes.plan import EVALUATED_ROWS, plan_probes, write_probes
from checks.samples import Preference, Sample
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import framework_python
from workers.frameworks.processes import build_launch, choose_devices
from workers.frameworks.transformers.logs import STATE_FILE, parse_log, read_log

RESUME = Path(__file__).with_name("resume.py")
LORA_PARAMETERS = r"\.lora_[AB]\."
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""a validation reads what was given and nothing else: a name that is no path must not become a download"""


def build_environment(processes: int = 1) -> Mapping[str, str]:
    """Return the variables of a run of so many processes, each on a device of its own."""
    return {
        **_OFFLINE,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **choose_devices(processes),
    }


def build_arguments(spec: RunSpec, *, output: Path) -> dict[str, Any]:
    """Return the keyword arguments of `transformers.TrainingArguments` that say what `spec` says.

    Every default that differs between versions or between transformers and TRL is stated.
    """
    arguments: dict[str, Any] = {
        "output_dir": str(output),
        "max_steps": spec.steps,
        "per_device_train_batch_size": spec.batch,
        "gradient_accumulation_steps": spec.accumulation,
        "learning_rate": spec.lr,
        "lr_scheduler_type": _name_schedule(spec),
        "warmup_steps": spec.warmup_steps,
        "optim": {"adamw": "adamw_torch", "sgd": "sgd"}[spec.optimizer],
        "adam_beta1": spec.beta1,
        "adam_beta2": spec.beta2,
        "adam_epsilon": spec.eps,
        "weight_decay": spec.weight_decay,
        "max_grad_norm": spec.max_grad_norm,
        "bf16": spec.precision == "bf16",
        "fp16": spec.precision == "fp16",
        "gradient_checkpointing": spec.gradient_checkpointing,
        "seed": spec.seed,
        "data_seed": spec.seed,
        "save_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
        # A NaN replaced by the running mean would look like a healthy curve.
        "logging_nan_inf_filter": False,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    if spec.optimizer == "sgd":
        arguments["optim_args"] = f"momentum={spec.momentum!r}"
    if spec.gradient_checkpointing:
        # Reentrant checkpointing gives no gradients to adapters whose input needs none.
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if spec.probed:
        arguments |= {"eval_on_start": True, "per_device_eval_batch_size": spec.batch}
    return arguments


def _name_schedule(spec: RunSpec) -> str:
    # Transformers' `constant` ignores warmup_steps; the other two honour them.
    return "constant_with_warmup" if spec.schedule == "constant" and spec.warmup_steps else spec.schedule


def build_lora(spec: RunSpec) -> dict[str, Any] | None:
    """Return the keyword arguments of `peft.LoraConfig`, or None for full training.

    `init_lora_weights=False` draws both factors: PEFT's default leaves lora_B zero, and then every gradient of lora_A
    is zero at the first step and a wrong one cannot be seen.
    """
    if not spec.lora:
        return None
    return {
        "r": spec.lora_r,
        "lora_alpha": spec.lora_alpha,
        "target_modules": list(spec.lora_targets),
        "lora_dropout": 0.0,
        "init_lora_weights": False,
        "task_type": "CAUSAL_LM",
    }


def write_run(
    config: Mapping[str, Any],
    samples: tuple[Sample, ...] | tuple[Preference, ...] | tuple[Mapping[str, Any], ...],
    *,
    driver: Path,
    scratch: Path,
    spec: RunSpec,
) -> Launch:
    """Write rows.jsonl and config.json into `scratch`, each whole or not at all, and return the command.

    A run that is saved and resumed has a second configuration beside it, save.json, for the process that saves.
    """
    scratch = scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    rows, file = scratch / "rows.jsonl", scratch / "config.json"
    written = samples[: spec.first_rows]
    _write_whole(rows, "".join(json.dumps(_normalise(sample), ensure_ascii=False) + "\n" for sample in written))
    complete = {**config, "rows": str(rows)}
    command = build_launch(driver, file, processes=spec.processes)
    saved: tuple[Path, ...] = ()
    if spec.resume_after is not None:
        first = scratch / "save.json"
        arguments = {**config["arguments"], "save_steps": spec.resume_after}  # the two must agree; only one saves
        saving = {"output_dir": str(scratch / "saved"), "save_strategy": "steps"}
        _write_json(first, {**complete, "arguments": {**arguments, **saving}})
        complete["arguments"] = arguments
        saved = (scratch / "saved" / f"checkpoint-{spec.resume_after}",)
        complete["resume_from"] = str(saved[0])
        command = (framework_python(spec.framework), "-u", str(RESUME), str(driver), str(first), str(file))
    _write_json(file, complete)
    probes = scratch / "probes.json" if spec.probed else None
    if probes is not None:
        write_probes(plan_probes(spec.model), probes)
    return Launch(
        command=command,
        environment=build_environment(spec.processes),
        full_parameters=LORA_PARAMETERS if spec.lora else None,
        output=Path(config["arguments"]["output_dir"]),
        probes=probes,
        checkpoints=saved,
        export=Path(config["export"]) if "export" in config else None,
    )


def build_config(spec: RunSpec, *, scratch: Path) -> dict[str, Any]:
    """Return what every driver on the Trainer reads: the model, its dtype and attention, arguments, adapters."""
    return {
        "model": str(spec.model.resolve()),
        "dtype": "bfloat16" if spec.precision == "bf16_params" else "float32",
        "attention": spec.attention,
        "seed": spec.seed,
        "seq_len": spec.seq_len,
        "assistant_only": spec.assistant_only,
        "lora": build_lora(spec),
        "arguments": build_arguments(spec, output=scratch.resolve() / "output"),
        **(_build_questions(scratch) if spec.probed else {}),
    }


def _build_questions(scratch: Path) -> dict[str, Any]:
    """What a run does beside training when it is asked about its model: evaluate a few rows, and export in the end."""
    return {"evaluated_rows": EVALUATED_ROWS, "export": str(scratch.resolve() / "export")}


def _normalise(sample: Sample | Preference | Mapping[str, Any]) -> Mapping[str, Any]:
    """The row as a framework's data set holds it: only the columns of its form."""
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, Preference):
        return _normalise_preference(sample)
    if sample.form == "messages":
        return {"messages": name_turns(sample.messages)}
    if sample.form == "text":
        return {"text": sample.text}
    return {"prompt": sample.prompt, "completion": sample.completion}


def _normalise_preference(one: Preference) -> dict[str, Any]:
    """With its prompt in a column of its own, or as what both answers begin with: as it was given."""
    turns = one.chosen.prompt_turns
    messages = one.chosen.form == "messages"
    prompt = name_turns(one.chosen.messages[:turns]) if messages else one.chosen.prompt
    row: dict[str, Any] = {"prompt": prompt} if one.explicit else {}
    for name, side in (("chosen", one.chosen), ("rejected", one.rejected)):
        if messages:
            row[name] = name_turns(side.messages[turns if one.explicit else 0 :])
        else:
            row[name] = side.completion if one.explicit else side.prompt + side.completion
    return row


def name_turns(messages: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Turns as frameworks read them."""
    return [{"role": role, "content": content} for role, content in messages]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write_whole(path, json.dumps(content, indent=2) + "\n")


def _write_whole(path: Path, content: str) -> None:
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    aside.write_text(content, encoding="utf-8")
    aside.replace(path)


def read_run_log(output: Path, log: Path) -> tuple[LogRecord, ...]:
    """The exact log of a Trainer that ended; else what it printed before it did not."""
    if (output / STATE_FILE).is_file():
        return read_log(output)
    return parse_log(log.read_text(encoding="utf-8", errors="replace"))
