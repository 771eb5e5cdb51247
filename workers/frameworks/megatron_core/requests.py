"""What neither of the adapters on Megatron-core can run."""

from __future__ import annotations

from collections.abc import Mapping

from checks.errors import BadRequest
from checks.models.checkpoint import read_config
from checks.spec import RunSpec
from workers.frameworks.megatron_core.layout import layout_of
from workers.frameworks.options import Option, read_options

DENSE = frozenset({"llama", "qwen2", "qwen3"})
EXPERTS = frozenset({"qwen3_moe"})
"""families whose parameters `names.py` states"""

DISTRIBUTED = Option(bool, "each data-parallel rank reduces the gradients of, and steps, a part of the parameters")
"""Megatron's distributed optimizer"""


def check_options(spec: RunSpec, known: Mapping[str, Option]) -> None:
    """Raise BadRequest for an option, or one beside a division, that is not run."""
    if read_options(spec, known).get("use_distributed_optimizer"):
        for axis in ("tp_size", "pp_size", "cp_size", "ep_size"):
            if getattr(spec, axis) > 1:
                found = "the distributed optimizer is run with data-parallel ranks alone here"
                raise BadRequest(axis, found, f"set {axis}=1, or leave the option use_distributed_optimizer out")


def check_megatron(spec: RunSpec, *, framework: str, saves: bool = False) -> None:
    """Raise BadRequest, naming the setting, for a model, a precision or a division that is not run.

    `saves`: whether the framework's checkpoints are taken up again here.
    """
    config = read_config(spec.model)
    family = str(config.get("model_type"))
    if family not in DENSE | EXPERTS:
        listed = ", ".join(sorted(DENSE | EXPERTS))
        raise BadRequest("model", f"the parameters of {family} are not stated for {framework}", f"give one of {listed}")
    if spec.precision != "float32":
        found = f"{framework} is run in float32 only: in another its optimizer steps float32 copies of the parameters"
        raise BadRequest("precision", found, "set precision=float32")
    if spec.lora:
        found = f"the adapters of {framework} share one first factor among query, key and value, which no reference has"
        raise BadRequest("lora", found, "set lora=false or framework ms_swift")
    if spec.probed or (spec.resume_after is not None and not saves):
        found = f"{framework} is run without {'evaluation' if saves else 'saving and evaluation'} here"
        raise BadRequest("checks", found, "leave out the checks that take such a run")
    if spec.resume_after is not None and spec.processes > 1:
        raise BadRequest("resume_after", f"a run of {spec.processes} processes is not resumed", "set all degrees to 1")
    if spec.sharding == "fsdp2":
        raise BadRequest("sharding", f"{framework} is not run with fsdp2", "set sharding=ddp")
    if spec.dp_size > 1 and spec.sharding == "none":
        raise BadRequest("sharding", f"none does not say what each of {spec.dp_size} ranks holds", "set sharding=ddp")
    _check_division(spec, family)


def _check_division(spec: RunSpec, family: str) -> None:
    config = read_config(spec.model)
    for axis, fields in (
        ("tp_size", ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")),
        ("pp_size", ("num_hidden_layers",)),
        ("ep_size", ("num_experts",)),
    ):
        degree = getattr(spec, axis)
        for field in fields if degree > 1 else ():
            value = config.get(field) or config.get("num_local_experts")
            if not isinstance(value, int) or value % degree:
                raise BadRequest(axis, f"{degree} does not divide {field} {value}", f"set {axis} to a divisor of it")
    if spec.ep_size > 1 and family not in EXPERTS:
        raise BadRequest("ep_size", f"{family} has no experts", "set ep_size=1 or give a model of qwen3_moe")
    if spec.tp_size > 1 and family in EXPERTS:
        found = "experts beside tensor parallelism take sequence parallelism, which is not run here"
        raise BadRequest("tp_size", found, "set tp_size=1")
    if spec.accumulation % spec.ep_size:
        found = f"{spec.ep_size} ranks that share experts cannot share {spec.accumulation} micro-batches equally"
        raise BadRequest("accumulation", found, f"set it to a multiple of {spec.ep_size}")
    layout = layout_of(spec)
    if layout.pp > 1 and spec.accumulation // spec.ep_size < 1:
        raise BadRequest("accumulation", "leaves the pipeline without a micro-batch", "set it to 1 or more")
