"""ms-swift: `swift sft` on raw rows; full parameters or LoRA, padded or packed, one process or several copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.samples import Sample, read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import require_module
from workers.frameworks.ms_swift.logs import read_log
from workers.frameworks.ms_swift.templates import choose_template
from workers.frameworks.processes import check_processes, refuse_axes
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.shims import find_shims
from workers.frameworks.trainer import build_config, write_run

DRIVER = Path(__file__).with_name("train.py")
REMEDY = "build an environment with plumbline env create ms-swift==4.6.0"
REFUSAL = "ms-swift's refusal to pack without flash attention"
"""what a stand-in says that it replaces, where packing is to be tried with another attention"""


class MsSwiftAdapter:
    """ms-swift renders a conversation with templates of its own, unless it is to learn every token."""

    name = "ms_swift"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for what ms-swift cannot do, or not on a CPU, and for what no framework can run."""
        refuse_objective(spec, framework="ms-swift, as it is run here,")
        for name in ("packing", "padding_free"):
            if getattr(spec, name) and not _lifts_refusal():
                found = f"ms-swift has {name} with flash attention only, not with {spec.attention}"
                raise BadRequest(name, found, f"set {name}=false or framework trl")
        refuse_axes(spec, "tp_size", "ep_size", "pp_size", "cp_size", framework="swift sft")
        if spec.sharding == "fsdp2":
            found = "fsdp2 is ignored by transformers' Trainer on a CPU, in silence"
            raise BadRequest("sharding", found, "set sharding=ddp or framework plain")
        check_processes(spec)
        check_request(spec, read_samples(spec.data))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        require_module("swift", framework="ms_swift", remedy=REMEDY)
        samples = read_samples(spec.data)
        config = build_config(spec, scratch=scratch)
        config["objective"] = spec.objective
        config["arguments"] = _translate(config["arguments"]) | _build_arguments(spec, samples[0])
        return write_run(config, samples, driver=DRIVER, scratch=scratch, spec=spec)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """ms-swift's own log."""
        return read_log(output)


def _lifts_refusal() -> bool:
    return any(REFUSAL in shim.replaces for shim in find_shims())


def _translate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """TrainingArguments' keywords as ms-swift's options."""
    return {**arguments, "report_to": "none"}


def _build_arguments(spec: RunSpec, sample: Sample) -> dict[str, Any]:
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
        **choose_template(spec, sample),
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
