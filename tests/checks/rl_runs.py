"""Small captures of steps that learn from preferences or rewards, with their micro-batches laid out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from checks.captures.capture import open_capture
from checks.material import Material, RunOutcome
from checks.references.batch import Document, MicroBatch
from checks.spec import RunSpec
from tests.checks.data_runs import make_spec

Tensors = Mapping[str, torch.Tensor]


def make_rl_material(
    directory: Path,
    *,
    objective: str,
    scalars: Mapping[int, Sequence[float]],
    batches: Mapping[int, Sequence[MicroBatch]],
    rollouts: Mapping[int, Tensors] | None = None,
    counted: Mapping[int, Sequence[int]] | None = None,
    data: str = "preferences_sample",
    **settings: Any,
) -> Material:
    """Steps → the scalars that were back-propagated, the micro-batches, and what was generated in the step.

    `counted`: how many targets the loss kernel counted in each micro-batch.
    """
    spec: RunSpec = replace(make_spec(data), framework="trl", objective=objective, **settings)  # type: ignore[arg-type]
    directory.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {"format": "plumbline-capture", "version": 1, "missing": [], "environment": None}
    manifest |= {"started": "2026-03-01T12:00:00+00:00", "files": [], "tensors": []}
    steps = [record_step(step, values, (counted or {}).get(step)) for step, values in scalars.items()]
    manifest["ranks"] = [{"rank": 0, "local_rank": 0, "pid": 1, "steps": steps, "rows": []}]
    for step, tensors in (rollouts or {}).items():
        _write(directory, manifest, step, tensors)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    outcome = RunOutcome("completed", 0, 1.0, None, open_capture(directory), None)
    return Material(
        spec, outcome, batches={step: tuple(part) for step, part in batches.items()}, total_steps=spec.steps
    )


def record_step(step: int, values: Sequence[float], counted: Sequence[int] | None = None) -> dict[str, Any]:
    micro_batches = []
    for index, value in enumerate(values):
        calls = []
        if counted is not None:
            calls = [{"reduction": "mean", "ignore_index": -100, "dtype": "torch.float32", "counted": counted[index]}]
        micro_batches.append(
            {"index": index, "backward": value, "backward_dtype": "torch.float32", "cross_entropy": calls}
        )
    return {
        "step": step,
        "model": {"class": "Model", "training": True, "parameter_dtypes": {}},
        "scalars": {},
        "trainable": [],
        "frozen": [],
        "micro_batches": micro_batches,
        "clips": [],
        "optimizer": {"class": "Optimizer", "groups": [], "without_gradient": []},
    }


def _write(directory: Path, manifest: dict[str, Any], step: int, tensors: Tensors) -> None:
    name = f"step{step:05d}-rank00000.safetensors"
    save_file({key: value.clone().contiguous() for key, value in tensors.items()}, directory / name)
    size = (directory / name).stat().st_size
    manifest["files"].append({"path": name, "rank": 0, "step": step, "bytes": size, "sha256": ""})
    for key, value in tensors.items():
        manifest["tensors"].append(
            {
                "step": step,
                "rank": 0,
                "micro_batch": None,
                "kind": "rollout",
                "name": key,
                "source_name": key,
                "field": None,
                "dtype": str(value.dtype),
                "global_shape": list(value.shape),
                "placement": {},
                "file": name,
                "representations": {"full": key},
                "stats": {"norm": 0.0, "nonfinite": 0},
            }
        )


def make_micro(
    ids: torch.Tensor,
    losses: torch.Tensor,
    counted: torch.Tensor,
    *,
    given: Tensors | None = None,
    answers: torch.Tensor | None = None,
) -> MicroBatch:
    """Rows of one document each, without padding; (rows, positions) each."""
    documents = tuple(Document(row, 0, ids.shape[1]) for row in range(ids.shape[0]))
    seen = losses.double().masked_fill(~counted, 0.0)
    return MicroBatch(ids, ids, counted, seen, None, documents, "mask", None, given=given or {}, answers=answers)


def draw(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers, float64."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
