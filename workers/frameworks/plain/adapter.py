"""A training loop written by hand on a transformers model: over one process, or divided over several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.captures.log import LogRecord
from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.roles import other_layout
from checks.samples import read_samples
from checks.spec import RunSpec
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import framework_python
from workers.frameworks.processes import build_launch, check_processes, refuse_axes
from workers.frameworks.requests import check_request, refuse_objective
from workers.frameworks.trainer import RESUME, build_environment, read_run_log, write_run

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
        refuse_objective(spec, framework="the plain loop")
        if spec.packing:
            raise BadRequest("packing", "the plain loop does not pack", "set packing=false or framework trl")
        if spec.lora:
            raise BadRequest("lora", "the plain loop has no adapters", "set lora=false or framework transformers")
        if spec.resume_after is not None and not spec.resharded:
            found = "the plain loop saves only what another layout is to load"
            raise BadRequest("resume_after", found, "use framework transformers or trl")
        refuse_axes(spec, "pp_size", "cp_size", framework="the plain loop")
        check_processes(spec)
        if spec.precision == "fp16" and spec.processes > 1:
            found = "the plain loop's ranks do not tell each other of an overflow, so that some would skip a step alone"
            raise BadRequest("precision", found, "set all degrees to 1 with fp16")
        _check_division(spec)
        check_request(spec, read_samples(spec.data))

    def prepare(self, spec: RunSpec, scratch: Path) -> Launch:
        """Write the driver's configuration and rows into `scratch`."""
        self.check(spec)
        if spec.resharded:
            return _prepare_two(spec, scratch.resolve())
        return write_run(_configure(spec, scratch), read_samples(spec.data), driver=DRIVER, scratch=scratch, spec=spec)

    def read_log(self, output: Path, log: Path) -> tuple[LogRecord, ...]:
        """The loop's log, in the Trainer's form."""
        return read_run_log(output, log)


def _configure(spec: RunSpec, scratch: Path) -> dict[str, Any]:
    config: dict[str, Any] = {name: getattr(spec, name) for name in COPIED}
    return config | {
        "model": str(spec.model.resolve()),
        "dtype": "bfloat16" if spec.precision == "bf16_params" else "float32",
        "autocast": {"bf16": "bfloat16", "fp16": "float16"}.get(spec.precision),
        "arguments": {"output_dir": str(scratch.resolve() / "output")},
    }


def _prepare_two(spec: RunSpec, scratch: Path) -> Launch:
    """The processes that save in the asked layout, and those that load it in the other one and go on."""
    saved = str(scratch / "saved")
    parts = (
        ("save", spec, {"save_after": spec.resume_after, "save_to": saved}),
        ("load", other_layout(spec), {"resume_from": saved, "done": spec.resume_after}),
    )
    for name, layout, details in parts:
        alone = replace(layout, resume_after=None, resharded=False)
        start = build_launch(DRIVER, DRIVER, processes=alone.processes)[2:-2]
        config = {**_configure(alone, scratch / name), **details, "launch": start}
        launch = write_run(config, read_samples(spec.data), driver=DRIVER, scratch=scratch / name, spec=alone)
    files = [str(scratch / name / "config.json") for name, _, _ in parts]
    return replace(
        launch,
        command=(framework_python(spec.framework), "-u", str(RESUME), str(DRIVER), *files),
        environment=build_environment(max(layout.processes for _, layout, _ in parts)),
    )


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
