"""Captures of several ranks, made by hand: what each rank holds of a tensor is stated by its slice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from plumbline_capture.represent import describe
from plumbline_capture.sketch import row_norms, sample, sketch
from safetensors.torch import save_file

from checks.captures.capture import Capture, open_capture

Slice = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Held:
    """One rank's part of a tensor: `where` of `shape`, all of it by default."""

    name: str
    part: torch.Tensor
    kind: str = "gradient"
    shape: tuple[int, ...] | None = None
    where: Slice | None = None
    placement: Mapping[str, str] = field(default_factory=dict)
    micro_batch: int | None = None
    kept: tuple[str, ...] = ("full", "sketch", "sample", "row_norms")
    field: str | None = None


@dataclass(frozen=True)
class RankPart:
    """What one rank recorded: its tensors, the scalar of each backward, and its total norm."""

    rank: int
    tensors: tuple[Held, ...]
    losses: tuple[float, ...] = (1.0,)
    norm: float | None = None
    steps: tuple[int, ...] = (1,)
    rows: tuple[tuple[tuple[str, int], ...], ...] = ()
    """the rows of each micro-batch, by their prints"""


def cut(whole: torch.Tensor, name: str, where: Slice, **details: Any) -> Held:
    """The part of a tensor that lies in `where`."""
    part = whole[tuple(slice(*span) for span in where)].contiguous()
    return Held(name, part, shape=tuple(whole.shape), where=where, **details)


def make_capture(directory: Path, ranks: Sequence[RankPart], *, missing: Sequence[dict[str, Any]] = ()) -> Capture:
    """Write the files and the manifest, and open them."""
    directory.mkdir(parents=True)
    files, entries = [], []
    for rank in ranks:
        for step in rank.steps:
            stored: dict[str, torch.Tensor] = {}
            file = f"step{step:05d}-rank{rank.rank:05d}.safetensors"
            for held in rank.tensors:
                entries.append(_enter(held, rank.rank, step, file, stored))
            save_file(stored or {"empty": torch.zeros(1)}, str(directory / file))
            size = (directory / file).stat().st_size
            files.append({"path": file, "rank": rank.rank, "step": step, "bytes": size, "sha256": ""})
    manifest = {
        "format": "plumbline-capture",
        "version": 1,
        "ranks": [_describe_rank(rank) for rank in ranks],
        "missing": list(missing),
        "files": files,
        "tensors": entries,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return open_capture(directory)


def _enter(held: Held, rank: int, step: int, file: str, stored: dict[str, torch.Tensor]) -> dict[str, Any]:
    shape = tuple(held.part.shape) if held.shape is None else held.shape
    where = [(0, size) for size in shape] if held.where is None else list(held.where)
    values = {"full": held.part}
    if held.kind != "batch" and held.part.is_floating_point():
        values["sketch"] = sketch(held.part, held.name, where=where, global_shape=shape)
        values["sample"] = sample(held.part, held.name, where=where, global_shape=shape)
        if held.part.dim() > 1:
            values["row_norms"] = row_norms(held.part)
    key = f"{held.kind}/{held.micro_batch}/{held.name}/{held.field}"
    kept = {name: f"{key}/{name}" for name in values if name in held.kept}
    stored |= {kept[name]: values[name].contiguous().clone() for name in kept}
    return {
        "step": step,
        "rank": rank,
        "micro_batch": held.micro_batch,
        "kind": held.kind,
        "name": held.name,
        "source_name": held.name,
        "field": held.field,
        "dtype": str(held.part.dtype),
        "global_shape": list(shape),
        "slice": [list(span) for span in where],
        "placement": dict(held.placement),
        "file": file,
        "representations": kept,
        "stats": describe(held.part),
    }


def _describe_rank(rank: RankPart) -> dict[str, Any]:
    rows = [
        {"step": step, "micro_batch": index, "width": 9, "masked": True, "rows": [list(row) for row in micro]}
        for step in rank.steps
        for index, micro in enumerate(rank.rows)
    ]
    clip = {"after_backward": 1, "max_norm": 1.0, "norm_type": 2.0, "total_norm": rank.norm, "factor": 1.0}
    return {
        "rank": rank.rank,
        "rows": rows,
        "steps": [
            {
                "step": step,
                "model": {"class": "Model", "training": True, "parameter_dtypes": {}},
                "scalars": {},
                "trainable": [],
                "frozen": [],
                "micro_batches": [{"index": index, "backward": loss} for index, loss in enumerate(rank.losses)],
                "clips": [] if rank.norm is None else [clip],
                "optimizer": {"class": "SGD", "groups": [], "without_gradient": []},
            }
            for step in rank.steps
        ],
    }
