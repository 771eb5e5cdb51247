"""Small captures of what a data pipeline hands to a model: token ids, labels, masks, prints of rows; nothing else."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plumbline_capture.fingerprints import record_rows
from safetensors.torch import save_file
from transformers import AutoTokenizer

from checks.captures.capture import open_capture
from checks.faults import fault
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.references.dataset import read_dataset
from checks.samples import Sample, read_samples, resolve_data
from checks.spec import RunSpec
from workers.frameworks.transformers.train import collate, tokenize

IGNORED = -100
Batch = dict[str, torch.Tensor]
Example = dict[str, list[int]]


def make_spec(data: str = "tulu3_sample", **settings: Any) -> RunSpec:
    """A run of the Trainer on a tiny model; `data`: a shipped file's name or a path."""
    return RunSpec("transformers", resolve_model("tiny:qwen3").path, resolve_data(data), **settings)


def write_data(directory: Path, rows: Sequence[dict[str, Any]]) -> str:
    """A JSONL file of these rows."""
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@cache
def load(model: Path) -> Any:
    """The framework's tokenizer."""
    return AutoTokenizer.from_pretrained(model)


def to_row(sample: Sample) -> dict[str, Any]:
    """A sample as a framework's data set holds it."""
    if sample.form == "messages":
        return {"messages": [{"role": role, "content": content} for role, content in sample.messages]}
    if sample.form == "text":
        return {"text": sample.text}
    return {"prompt": sample.prompt, "completion": sample.completion}


def tokenize_all(spec: RunSpec, tokenizer: Any = None) -> list[Example]:
    """Every sample as the Trainer's driver tokenises it: {"input_ids", "labels"}."""
    config = {"assistant_only": spec.assistant_only, "seq_len": spec.seq_len}
    tokenizer = tokenizer or load(spec.model)
    return [tokenize(to_row(sample), tokenizer, config) for sample in read_samples(spec.data)]


def batch_up(examples: Sequence[Example], *, batch: int = 2) -> list[Batch]:
    """Micro-batches in the order of the examples, as the driver's collator pads them."""
    return [collate(list(examples[start : start + batch]), pad_token_id=0) for start in range(0, len(examples), batch)]


def pack(documents: Sequence[Sequence[int]], labels: Sequence[Sequence[int]] | None = None) -> Batch:
    """One padding-free row of several documents, with position ids that restart."""
    flat = torch.tensor([[token for document in documents for token in document]])
    wanted = flat.clone() if labels is None else torch.tensor([[one for part in labels for one in part]])
    positions = torch.tensor([[place for document in documents for place in range(len(document))]])
    wanted[positions == 0] = IGNORED
    return {"input_ids": flat, "labels": wanted, "position_ids": positions}


def make_material(
    spec: RunSpec,
    micro_batches: Sequence[Batch] | Sequence[Sequence[Batch]],
    directory: Path,
    *,
    captured: int | None = 1,
    targets: Callable[[Batch], torch.Tensor] | None = None,
    ranks: bool = False,
    edit: Callable[[dict[str, Any]], None] | None = None,
) -> Material:
    """A validation of which only the data are known: each micro-batch is a step of its own.

    `micro_batches`: in order; with `ranks`, one list a rank. Step 1 alone is captured, all of them for None. `targets`:
    what the loss counted of a batch, (rows, positions − 1); the shifted labels unless given.
    """
    by_rank: list[list[Batch]] = [list(part) for part in micro_batches] if ranks else [list(micro_batches)]  # type: ignore[arg-type]
    seen = targets or (lambda batch: batch["labels"][:, 1:])
    manifest: dict[str, Any] = {"format": "plumbline-capture", "version": 1, "missing": [], "environment": None}
    manifest |= {"started": "2026-03-01T12:00:00+00:00", "ranks": [], "files": [], "tensors": []}
    for rank, batches in enumerate(by_rank):
        recorder = _Recorder(rank)
        steps = []
        for step, batch in enumerate(batches, start=1):
            recorder.take(step, batch)
            if captured is None or step <= captured:
                steps.append(_record_step(step))
                tensors = {("batch", name): value for name, value in batch.items()}
                if "labels" in batch:
                    tensors["target", "target"] = seen(batch)
                _write(directory, manifest, tensors, step=step, rank=rank)
        manifest["ranks"].append({"rank": rank, "local_rank": rank, "pid": 1, "steps": steps, "rows": recorder.rows})
    if edit is not None:
        edit(manifest)
    (directory / "manifest.json").write_text(json.dumps(manifest))
    outcome = RunOutcome("completed", 0, 1.0, None, open_capture(directory), None)
    return Material(spec, outcome, dataset=read_dataset(spec), total_steps=spec.steps)


class _Recorder:
    """What `record_rows` reads and writes of a recorder."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step, self.rows_kept = rank, 0, 0
        self.rows: list[dict[str, Any]] = []
        self.now = SimpleNamespace(backwards=0, fingerprinted=0, fingerprinted_at=-1)

    def take(self, step: int, batch: Batch) -> None:
        self.step = step
        self.now = SimpleNamespace(backwards=0, fingerprinted=0, fingerprinted_at=-1)
        record_rows(self, batch)  # type: ignore[arg-type]


def _record_step(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "model": {"class": "Model", "training": True, "parameter_dtypes": {}},
        "scalars": {},
        "trainable": [],
        "frozen": [],
        "micro_batches": [{"index": 0}],
        "clips": [],
        "optimizer": {"class": "Optimizer", "groups": [], "without_gradient": []},
    }


def _write(
    directory: Path, manifest: dict[str, Any], tensors: dict[tuple[str, str], torch.Tensor], *, step: int, rank: int
) -> None:
    name = f"step{step:05d}-rank{rank:05d}.safetensors"
    save_file(
        {f"{kind}/{field}": value.clone().contiguous() for (kind, field), value in tensors.items()}, directory / name
    )
    size = (directory / name).stat().st_size
    manifest["files"].append({"path": name, "rank": rank, "step": step, "bytes": size, "sha256": ""})
    for kind, field in tensors:
        manifest["tensors"].append(
            {
                "step": step,
                "rank": rank,
                "micro_batch": 0,
                "kind": kind,
                "name": field,
                "source_name": field,
                "field": None,
                "dtype": "torch.int64",
                "global_shape": list(tensors[kind, field].shape),
                "placement": {},
                "file": name,
                "representations": {"full": f"{kind}/{field}"},
                "stats": {"norm": 0.0, "nonfinite": 0},
            }
        )


def each(examples: Sequence[Example], change: Callable[[Example], Example]) -> Iterator[Example]:
    """Copies of the examples, changed."""
    return (change({name: list(values) for name, values in example.items()}) for example in examples)


def with_settings(material: Material, **settings: Any) -> Material:
    """The same capture under another run spec."""
    spec = replace(material.spec, **settings)
    return replace(material, spec=spec, dataset=read_dataset(spec))


def inject(slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fault in force in this process, in the framework's code that it patches, until the test ends."""
    from torch.utils.data import RandomSampler
    from transformers import PreTrainedTokenizerBase, Trainer

    for owner, name in (
        (PreTrainedTokenizerBase, "apply_chat_template"),
        (PreTrainedTokenizerBase, "__call__"),
        (RandomSampler, "__iter__"),
        (Trainer, "__init__"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # the patch is undone with this one
    runpy.run_path(str(fault(slug).file))["install"]()
