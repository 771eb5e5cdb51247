"""Names, values and files of the capture format (`docs/capture-format.md`). Imports neither torch nor safetensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

FORMAT = "plumbline-capture"
VERSION = 1

FULL_KINDS = frozenset(
    {
        "batch",
        "target",
        "token_loss",
        "score",
        "next_token",
        "loss_input",
        "rollout",
        "router",
        "module_input",
        "module_output",
        "module_output_gradient",
        "probe",
        "probe_after",
        "export",
    }
)
"""kinds of which the whole tensor is kept"""
SKETCHED_KINDS = frozenset({"gradient", "parameter_before", "parameter_after", "checkpoint"})
"""kinds of which sketch, sample and row norms are kept"""
SAMPLED_KINDS = frozenset({"gradient_clipped", "optimizer_state_before", "optimizer_state", "checkpoint_state"})
"""kinds of which the sample is kept"""

ALWAYS_FULL = 4096
"""Tensors of at most so many elements are kept whole beside their other representations."""

# torch.compile, FSDP1, activation checkpointing, PEFT: they may sit anywhere in a path
_WRAPPER_PARTS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"})
# PEFT keeps one child an adapter under these (https://github.com/huggingface/peft, tuners/lora/layer.py)
_ADAPTER_PARENTS = frozenset(
    {"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector", "modules_to_save"}
)


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """One row of the manifest's `tensors`; the fields are those of the format page."""

    step: int
    rank: int
    micro_batch: Optional[int]
    kind: str
    name: str
    source_name: str
    field: Optional[str]
    dtype: str
    global_shape: List[int]
    slice: List[List[int]]
    placement: Dict[str, str]
    file: str
    representations: Dict[str, str]
    stats: Dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Missing:
    """One thing that could not be recorded, and why; rank or step is None where it concerns all."""

    rank: Optional[int]
    step: Optional[int]
    what: str
    why: str


def canonical_name(name: str) -> str:
    """Return the Hugging Face module path of a parameter or module: the wrappers' parts are taken off.

    Example: `module.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight` is
    `model.layers.0.self_attn.q_proj.lora_A.weight`. Applied twice it changes nothing more.
    """
    parts = [part for part in name.split(".") if part not in _WRAPPER_PARTS]
    while True:
        if parts[:1] == ["module"]:  # DistributedDataParallel; inside a path a module may bear that name itself
            parts = parts[1:]
        elif parts[:2] == ["base_model", "model"]:  # PeftModel.base_model.model
            parts = parts[2:]
        else:
            break
    return ".".join(_without_adapter_names(parts))


def _without_adapter_names(parts: List[str]) -> List[str]:
    kept: List[str] = []
    position = 0
    while position < len(parts):
        part = parts[position]
        following = parts[position + 1] if position + 1 < len(parts) else None
        if part not in _ADAPTER_PARENTS or following in (None, "weight", "bias"):
            kept.append(part)
            position += 1
            continue
        if part != "modules_to_save":  # a copy of the module in whose place it trains: it bears that one's name
            kept.append(part)
        position += 2
    return kept


def step_file_name(step: int, rank: int) -> str:
    """Return the name of the file that holds one captured step of one rank."""
    return f"step{step:05d}-rank{rank:05d}.safetensors"


def rank_file_name(rank: int) -> str:
    """Return the name of the file in which one rank keeps its part of the manifest while it runs."""
    return f"rank{rank:05d}.json"


def checkpoint_file_name(index: int) -> str:
    """Return the name of the file that holds what was read of one saved checkpoint."""
    return f"checkpoint{index:05d}.safetensors"


def export_file_name() -> str:
    """Return the name of the file that holds what the exported model answered."""
    return "export.safetensors"


def memory_file_name(rank: int) -> str:
    """Return the name of the file in which one rank's meter of memory leaves what it saw."""
    return f"memory{rank:05d}.json"


def utc_now() -> str:
    """Return the present time, ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def json_value(value: Any) -> Any:
    """Return a value as strict JSON has it: no NaN or infinity (they become "nan", "inf", "-inf"), no foreign type.

    Tuples and sets become lists; whatever JSON does not know becomes its `str`.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((json_value(item) for item in value), key=str)
    return str(value)


def temporary_path(path: Path) -> Path:
    """Return the name under which a file is written before it is renamed to `path`."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all: under a temporary name, then renamed."""
    temporary = temporary_path(path)
    try:
        temporary.write_text(json.dumps(json_value(content), allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
