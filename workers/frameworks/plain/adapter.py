"""A training loop written by hand on a transformers model: over one process, or divided over several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.processes import check_processes
from workers.frameworks.requests import check_request
from workers.frameworks.trainer import read_run_log, write_run

DRIVER = Path(__file__).with_name("train.py")
DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""families whose attention and MLP have the matrices that the driver divides, and nothing else that must be divided"""
EXPERTS = frozenset({"qwen3_moe", "deepseek_v3", "glm4_moe"})
"""families whose experts are two stacked matrices without biases"""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""names of a config for the number of experts: older and newer files of one family differ"""
COPIED = (
    *("seed", "seq_len", "assistant_only", "attention", "batch", "accumulation", "steps", "optimizer", "lr", "beta1"),
    *("beta2", "eps", "weight_decay", "momentum", "max_grad_norm", "schedule", "warmup_steps", "sharding"),
    *("dp_size", "tp_size", "ep_size", "gradient_checkpointing"),
)


class PlainAdapter:
    """The loop that the parallel checks trust: data, tensor and expert parallel with nothing around them."""

    name = "plain"

    def check(self, spec: RunSpec) -> None:
        """Raise BadRequest for packing, adapters and resuming, for what cannot be divided, and what nobody can run."""
        if spec.packing:
            raise BadRequest("packing", "the plain loop does not pack", "set packing=false or framework trl")
        if spec.lora:
            raise BadRequest("lora", "the plain loop has no adapters", "set lora=false or framework transformers")
        if spec.resume_after is not None:
            raise BadRequest("resume_after", "the plain loop saves nothing", "use framework transformers or trl")
        check_processes(spec)
        _check_division(spec)
        check_request(spec, read_samples(spec.data))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        config: dict[str, Any] = {name: getattr(spec, name) for name in COPIED}
        config |= {
            "model": str(spec.model.resolve()),
            "dtype": "bfloat16" if spec.precision == "bf16_params" else "float32",
            "autocast": spec.precision == "bf16",
            "arguments": {"output_dir": str(scratch.resolve() / "output")},
        }
        return write_run(config, read_samples(spec.data), driver=DRIVER, scratch=scratch, spec=spec)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The loop's log, in the Trainer's form."""
        return read_run_log(output, log)


def _check_division(spec: RunSpec) -> None:
    config = read_config(spec.model)
    family = str(config.get("model_type"))
    if spec.tp_size > 1:
        if family not in DENSE:
            raise BadRequest("tp_size", f"the plain loop cannot divide the matrices of {family}", _name("tp", DENSE))
        for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            _check_divisible("tp_size", spec.tp_size, field, config.get(field))
    if spec.ep_size > 1:
        if family not in EXPERTS:
            raise BadRequest("ep_size", f"the plain loop cannot divide experts of {family}", _name("ep", EXPERTS))
        field = next((name for name in EXPERT_COUNTS if name in config), EXPERT_COUNTS[0])
        _check_divisible("ep_size", spec.ep_size, field, config.get(field))


def _name(axis: str, families: frozenset[str]) -> str:
    return f"set {axis}_size=1 or give a model of {', '.join(sorted(families))}"


def _check_divisible(axis: str, degree: int, field: str, value: object) -> None:
    if not isinstance(value, int):
        raise BadRequest(axis, f"config.json does not state {field}", f"state it, or set {axis}=1")
    if value % degree:
        raise BadRequest(axis, f"{degree} does not divide {field} {value}", f"set {axis} to a divisor of {value}")
