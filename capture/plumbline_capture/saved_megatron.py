"""Optimizer states of a checkpoint that Megatron-core has saved, parameter by parameter of a run of one process.

`latest_checkpointed_iteration.txt` names the directory `iter_NNNNNNN`: shards of torch.distributed.checkpoint, whose
keys are `optimizer.state.FIELD.NAME` with all layers of the decoder stacked in one tensor, and `common.pt`, which holds
what all parameters share: the step (https://github.com/NVIDIA/Megatron-LM/tree/core_v0.16.1/megatron/core/
dist_checkpointing).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import torch

from plumbline_capture.saved_shards import METADATA, read_tensors

TRACKER, COMMON = "latest_checkpointed_iteration.txt", "common.pt"
_STATE = re.compile(r"optimizer\.state\.(?P<field>[^.]+)\.(?P<name>.+)")
_STACKED = re.compile(r"(?P<before>(?:.+\.)?layers\.)(?P<after>\D.*)")


def find_iteration(directory: Path) -> Optional[Path]:
    """Return where the states of a checkpoint lie; None where it is none of Megatron's, or holds no shards."""
    tracker = directory / TRACKER
    if not tracker.is_file():
        return None
    folder = directory / f"iter_{int(tracker.read_text(encoding='utf-8')):07d}"
    return folder if (folder / METADATA).is_file() else None


def read_common(folder: Path) -> Dict[str, Any]:
    """Return what all shards have in common; of classes its pickle may name arguments alone."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        loaded: Dict[str, Any] = torch.load(folder / COMMON, map_location="cpu", weights_only=True)
    return loaded


def read_states(folder: Path) -> Iterator[Tuple[str, str, torch.Tensor]]:
    """Yield (Megatron's parameter, field, value) of every state.

    Raises:
        UnreadShards: a file of shards is missing or damaged.
    """
    step = read_common(folder).get("optimizer", {}).get("state", {}).get("common_step")
    stepped: Dict[str, None] = {}
    for key, value in read_tensors(folder, _STATE):
        match = _STATE.fullmatch(key)
        if match is not None:
            for name, part in _unstack(match["name"], value):
                yield name, match["field"], part
                stepped[name] = None
    if step is not None:
        for name in stepped:
            yield name, "step", torch.as_tensor(step)


def _unstack(name: str, value: torch.Tensor) -> Iterator[Tuple[str, torch.Tensor]]:
    match = _STACKED.fullmatch(name)
    if match is None:
        yield name, value
        return
    for layer, part in enumerate(value):
        yield f"{match['before']}{layer}.{match['after']}", part
