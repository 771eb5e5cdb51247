"""ms-swift: `swift sft` on raw rows, and `swift rlhf` with DPO and GRPO; full parameters or LoRA, padded or packed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.models import resolve_model
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import require_module
from workers.frameworks.ms_swift.logs import read_log
from workers.frameworks.ms_swift.objectives import STOP_EVERY, build_options, check_objective, make_rows
from workers.frameworks.ms_swift.templates import choose_template
from workers.frameworks.processes import check_processes, refuse_axes
from workers.frameworks.requests import check_request
from workers.frameworks.shims import find_shims
from workers.frameworks.trainer import build_config, write_run

DRIVER, HOOKS = (Path(__file__).with_name(name) for name in ("train.py", "hooks.py"))
REMEDY = "build an environment with plumbline env create ms-swift==4.6.0"
REFUSAL = "ms-swift's refusal to pack without flash attention"
"""what a stand-in says that it replaces, where packing is to be tried with another attention"""

UNKNOWN = frozenset({"qwen3_5_text"})
"""families whose class ms-swift 4.6.0 does not list (swift/model/models/qwen.py)"""


class MsSwiftAdapter:
    """ms-swift renders a conversation with templates of its own, unless it is to learn every token."""

    name = "ms_swift"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what ms-swift cannot do, or not on a CPU, and for what no framework can run."""
        for name in ("packing", "padding_free"):
            if getattr(spec, name) and not _lifts_refusal():
                found = f"ms-swift has {name} with flash attention only, not with {spec.attention}"
                raise BadRequest(name, found, f"set {name}=false or framework trl")
        family = resolve_model(str(spec.model)).family
        if family in UNKNOWN:
            found = f"ms-swift has no text model of {family}, only the one that sees as well"
            raise BadRequest("model", found, "use framework transformers or trl")
        refuse_axes(spec, "tp_size", "ep_size", "pp_size", framework="swift sft")
        if spec.sharding == "fsdp2":
            found = "fsdp2 is ignored by transformers' Trainer on a CPU, in silence"
            raise BadRequest("sharding", found, "set sharding=ddp or framework plain")
        check_processes(spec)
        if spec.cp_size > 1:
            _check_sequence_parallel(spec)
        check_request(spec, read_samples(spec.data) if spec.objective == "sft" else check_objective(spec))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        require_module("swift", framework="ms_swift", remedy=REMEDY)
        config = build_config(spec, scratch=scratch)
        config["objective"] = spec.objective
        if spec.objective == "sft":
            samples = read_samples(spec.data)
            config["arguments"] = _translate(config["arguments"]) | _build_arguments(spec)
            config["arguments"] |= choose_template(spec, samples[0])
            launch = write_run(config, samples, driver=DRIVER, scratch=scratch, spec=spec)
            return replace(launch, hooks=(HOOKS,)) if spec.cp_size > 1 else launch
        sample = check_objective(spec)[0]
        config["arguments"] = _translate(config["arguments"]) | _build_arguments(spec) | build_options(spec, sample)
        if spec.objective == "grpo":
            config["stop_every"] = STOP_EVERY
            # An evaluation would generate and reward as well, and is not what a probed run is for.
            config.pop("evaluated_rows", None)
            for name in ("eval_on_start", "per_device_eval_batch_size"):
                config["arguments"].pop(name, None)
        launch = write_run(config, make_rows(spec), driver=DRIVER, scratch=scratch, spec=spec)
        return replace(launch, hooks=(HOOKS,))

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """ms-swift's own log."""
        return read_log(output)


def _check_sequence_parallel(spec: RunSpec) -> None:
    """ms-swift's `sequence_parallel_size`: Ulysses, which divides heads; ring attention needs a GPU."""
    if spec.objective != "sft":
        raise BadRequest("cp_size", f"is run here with sft, not with {spec.objective}", "set cp_size=1")
    if spec.attention != "sdpa":
        found = f"ms-swift divides the positions for sdpa, and {spec.attention} attention then raises"
        raise BadRequest("cp_size", found, "set attention=sdpa, or cp_size=1")
    heads = json.loads((spec.model / "config.json").read_text(encoding="utf-8")).get("num_key_value_heads")
    if heads and heads % spec.cp_size:
        found = f"{spec.cp_size} does not divide {heads} key-value heads: ms-swift then wants flash attention"
        raise BadRequest("cp_size", found, f"set cp_size to a divisor of {heads}")


def _lifts_refusal() -> bool:
    return any(REFUSAL in shim.replaces for shim in find_shims("ms_swift"))


def _translate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """TrainingArguments' keywords as ms-swift's options."""
    return {**arguments, "report_to": "none"}


def _build_arguments(spec: RunSpec) -> dict[str, Any]:
    """What ms-swift's options add to TrainingArguments; every default that differs from Hugging Face's is stated."""
    arguments: dict[str, Any] = {
        "tuner_type": "lora" if spec.lora else "full",
        "torch_dtype": "bfloat16" if spec.precision == "bf16_params" else "float32",
        "attn_impl": spec.attention,
        "max_length": spec.seq_len,
        "truncation_strategy": "right",
        "split_dataset_ratio": 0.0,
        "add_version": False,
        "create_checkpoint_symlink": False,
        "dataloader_num_workers": 0,
        "dataset_num_proc": 1,
        "load_from_cache_file": False,
        "check_model": False,
        "packing": spec.packing,
        "padding_free": spec.padding_free,
        "sequence_parallel_size": spec.cp_size,
    }
    if spec.lora:
        arguments |= {
            "lora_rank": spec.lora_r,
            "lora_alpha": spec.lora_alpha,
            "target_modules": list(spec.lora_targets),
            "lora_dropout": 0.0,
            "init_weights": "false",
        }
    return arguments
