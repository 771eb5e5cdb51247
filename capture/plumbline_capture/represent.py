"""Turn a tensor into the manifest's entry and the representations that go into the step's file."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from plumbline_capture.format import ALWAYS_FULL, FULL_KINDS, SKETCHED_KINDS, TensorEntry, step_file_name
from plumbline_capture.sketch import NORM_BLOCK, row_norms, sample, sketch
from plumbline_capture.state import Recorder, rank_of_process


@dataclass(frozen=True)
class Placed:
    """This rank's part of a tensor, and where it lies in the whole."""

    local: torch.Tensor
    global_shape: Tuple[int, ...]
    where: List[List[int]]
    placement: Dict[str, str]

    def permute(self, order: Tuple[int, ...]) -> "Placed":
        """Return the same part with its dimensions in another order."""
        shape = tuple(self.global_shape[axis] for axis in order)
        where = [self.where[axis] for axis in order]
        return Placed(self.local.permute(order).contiguous(), shape, where, self.placement)


def locate(tensor: torch.Tensor) -> Placed:
    """Return this rank's part of a plain or distributed tensor, without any communication."""
    if not hasattr(tensor, "to_local") or not hasattr(tensor, "placements"):
        shape = tuple(tensor.shape)
        return Placed(tensor.detach(), shape, [[0, size] for size in shape], {})
    distributed: Any = tensor
    try:
        utilities: Any = importlib.import_module("torch.distributed.tensor._utils")
    except ImportError:  # torch < 2.5
        utilities = importlib.import_module("torch.distributed._tensor._utils")
    shape = tuple(distributed.shape)
    mesh, placements = distributed.device_mesh, distributed.placements
    local_shape, start = utilities.compute_local_shape_and_global_offset(shape, mesh, placements)
    axes = mesh.mesh_dim_names or [f"axis{position}" for position in range(mesh.ndim)]
    kinds = ["shard" if p.is_shard() else "partial" if p.is_partial() else "replicate" for p in placements]
    where = [[begin, begin + size] for begin, size in zip(start, local_shape)]
    return Placed(distributed.detach().to_local(), shape, where, dict(zip(axes, kinds)))


def keep_tensor(
    recorder: Recorder,
    tensor: torch.Tensor,
    *,
    kind: str,
    name: str,
    source_name: Optional[str] = None,
    micro_batch: Optional[int] = None,
    field: Optional[str] = None,
) -> TensorEntry:
    """Keep a tensor for the step's file, in the representations of its kind; a second one of the same key replaces it.

    Returns its manifest entry.
    """
    return keep_placed(
        recorder,
        locate(tensor),
        kind=kind,
        name=name,
        source_name=name if source_name is None else source_name,
        micro_batch=micro_batch,
        field=field,
    )


def keep_placed(
    recorder: Recorder,
    placed: Placed,
    *,
    kind: str,
    name: str,
    source_name: str,
    micro_batch: Optional[int] = None,
    field: Optional[str] = None,
) -> TensorEntry:
    """Keep this rank's part of a tensor as `keep_tensor` does."""
    base = "/".join(str(part) for part in (kind, micro_batch, name, field) if part is not None)
    representations: Dict[str, str] = {}
    for representation, value in _representations(recorder, placed, kind=kind, name=name).items():
        key = f"{base}/{representation}"
        recorder.now.tensors[key] = value
        representations[representation] = key
    rank = rank_of_process()
    entry = TensorEntry(
        step=recorder.step,
        rank=rank,
        micro_batch=micro_batch,
        kind=kind,
        name=name,
        source_name=source_name,
        field=field,
        dtype=str(placed.local.dtype),
        global_shape=list(placed.global_shape),
        slice=placed.where,
        placement=placed.placement,
        file=step_file_name(recorder.step, rank),
        representations=representations,
        stats=describe(placed.local),
    )
    recorder.now.entries[base] = entry
    return entry


def _representations(recorder: Recorder, placed: Placed, *, kind: str, name: str) -> Dict[str, torch.Tensor]:
    local = placed.local
    if kind in FULL_KINDS:
        return {"full": _copy(local)}
    kept = {"sample": sample(local, name, where=placed.where, global_shape=placed.global_shape)}
    if kind in SKETCHED_KINDS:
        kept["sketch"] = sketch(local, name, where=placed.where, global_shape=placed.global_shape)
        if local.dim() >= 2:
            kept["row_norms"] = row_norms(local)
    pattern = recorder.settings.full_parameters
    asked = recorder.settings.full or (pattern is not None and re.fullmatch(pattern, name) is not None)
    if asked or math.prod(placed.global_shape) <= ALWAYS_FULL:
        kept["full"] = _copy(local)
    return kept


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def describe(tensor: torch.Tensor) -> Dict[str, Any]:
    """Return count, mean, rms, norm, min and max of the finite part in float64, and the number of non-finite values."""
    flat = tensor.detach().reshape(-1)
    count, finite = flat.numel(), 0
    total, squares, low, high = 0.0, 0.0, math.inf, -math.inf
    for block in _blocks(flat):
        block_low, block_high = (float(value) for value in torch.aminmax(block))
        if not (math.isfinite(block_low) and math.isfinite(block_high)):  # aminmax lets NaN through
            block = block[torch.isfinite(block)]
            if block.numel() == 0:
                continue
            block_low, block_high = (float(value) for value in torch.aminmax(block))
        finite += block.numel()
        low, high = min(low, block_low), max(high, block_high)
        total += float(block.sum(dtype=torch.float64))
        squares += _norm(block) ** 2
    stats: Dict[str, Any] = {"count": count, "mean": None, "rms": None, "norm": None, "min": None, "max": None}
    if finite:
        norm = math.sqrt(squares)
        stats.update(mean=total / finite, rms=norm / math.sqrt(finite), norm=norm, min=low, max=high)
    stats["nonfinite"] = count - finite
    return stats


def norm_of(tensor: torch.Tensor) -> float:
    """Return the Euclidean norm of a tensor, summed in float64."""
    return math.sqrt(sum(_norm(block) ** 2 for block in _blocks(tensor.detach().reshape(-1))))


def _norm(block: torch.Tensor) -> float:
    if not block.is_floating_point():
        block = block.to(torch.float64)
    return float(torch.linalg.vector_norm(block, dtype=torch.float64))


def _blocks(flat: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Cut (n,) into pieces small enough that all that is computed of one finds it in a core's cache."""
    if flat.numel() == 0:
        return ()
    return torch.split(flat, NORM_BLOCK if flat.device.type == "cpu" else flat.numel())
