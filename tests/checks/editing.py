"""Edited copies of captures, consistent in every representation, and materials that hold them."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from plumbline_capture.represent import describe
from plumbline_capture.sketch import row_norms, sample, sketch
from safetensors import safe_open
from safetensors.torch import save_file

from checks.captures.capture import Capture, open_capture
from checks.captures.log import keep_log
from checks.material import Material
from checks.references.batch import Corpus, read_step
from checks.references.corpus import render_corpus
from checks.references.reference import Reference
from checks.roles import Role
from checks.spec import RunSpec

Change = Callable[[torch.Tensor], torch.Tensor]


class Edit:
    """A copy of a capture in the making: change what it holds, then `save` it.

    A tensor is changed in all its representations at once, as if the run had computed it so. What is changed goes
    into a file of its own beside the capture's, so that a copy costs only what it changes.
    """

    def __init__(self, source: Capture, out: Path) -> None:
        self.out = out
        self.manifest: dict[str, Any] = pickle.loads(pickle.dumps(source.manifest))
        self.log = source.log
        self._source = source.path
        self._changed: dict[str, torch.Tensor] = {}
        self._file = f"edited-{out.name}.safetensors"  # a copy of a copy has another one

    def tensor(self, kind: str, name: str, **where: Any) -> torch.Tensor:
        """The whole tensor; `where`: step (1), field, micro_batch."""
        return self._read(self.entry(kind, name, **where), "full")

    def put(self, kind: str, name: str, value: torch.Tensor, **where: Any) -> Edit:
        """Record `value` in the place of a tensor, in each representation that it has and in its stats."""
        entry = self.entry(kind, name, **where)
        made: dict[str, Callable[[], torch.Tensor]] = {
            "full": lambda: value,
            "sketch": lambda: sketch(value, name),
            "sample": lambda: sample(value, name),
            "row_norms": lambda: row_norms(value),
        }
        self._write(entry, {representation: made[representation]() for representation in entry["representations"]})
        shape = list(value.shape)
        entry |= {"stats": describe(value), "dtype": str(value.dtype), "global_shape": shape}
        entry["slice"] = [[0, size] for size in shape]
        return self

    def put_sample(self, kind: str, name: str, value: torch.Tensor, **where: Any) -> Edit:
        """Record other values at the sample positions of a tensor, and nothing else of it."""
        entry = self.entry(kind, name, **where)
        kept = {representation: self._read(entry, representation) for representation in entry["representations"]}
        self._write(entry, {**kept, "sample": value})
        return self

    def change(self, kind: str, name: str, function: Change, **where: Any) -> Edit:
        return self.put(kind, name, function(self.tensor(kind, name, **where)), **where)

    def drop(self, kind: str, name: str, **where: Any) -> Edit:
        """Take a tensor out, as if it had not been recorded."""
        self.manifest["tensors"].remove(self.entry(kind, name, **where))
        return self

    def rename(self, kind: str, name: str, new: str, **where: Any) -> Edit:
        """Record a tensor under another name."""
        value = self.tensor(kind, name, **where)
        self.entry(kind, name, **where)["name"] = new
        return self.put(kind, new, value, **where)

    def keep_sketches(self) -> Edit:
        """Leave what the recorder keeps without `--full`, and less: not even small tensors whole."""
        for entry in self.manifest["tensors"]:
            if "full" in entry["representations"] and len(entry["representations"]) > 1:
                del entry["representations"]["full"]
        return self

    def step(self, step: int = 1) -> dict[str, Any]:
        """The step's record, to be changed in place."""
        records = self.manifest["ranks"][0]["steps"]
        return next(record for record in records if record["step"] == step)

    def group(self, name: str, step: int = 1) -> dict[str, Any]:
        """The record of the optimizer group that holds a parameter."""
        groups = self.step(step)["optimizer"]["groups"]
        return next(group for group in groups if name in group["parameters"])

    def drop_step(self, step: int) -> Edit:
        """Take a whole step out."""
        rank = self.manifest["ranks"][0]
        rank["steps"] = [record for record in rank["steps"] if record["step"] != step]
        for part in ("files", "tensors"):
            self.manifest[part] = [entry for entry in self.manifest[part] if entry["step"] != step]
        return self

    def entry(
        self, kind: str, name: str, *, step: int = 1, field: str | None = None, micro_batch: int | None = None
    ) -> dict[str, Any]:
        """The tensor's row of the manifest."""
        wanted = {"step": step, "kind": kind, "name": name, "field": field, "micro_batch": micro_batch}
        (found,) = (e for e in self.manifest["tensors"] if all(e[key] == value for key, value in wanted.items()))
        return found  # type: ignore[no-any-return]

    def names(self, kind: str, *, step: int = 1) -> list[str]:
        return [e["name"] for e in self.manifest["tensors"] if (e["kind"], e["step"]) == (kind, step)]

    def write(self) -> Path:
        """Write the copy, with sizes and checksums that fit."""
        self.out.mkdir()
        for entry in self.manifest["files"]:
            os.link(self._source / entry["path"], self.out / entry["path"])
        if self._changed:
            save_file(self._changed, self.out / self._file)
            content = (self.out / self._file).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            self.manifest["files"].append(
                {"path": self._file, "rank": 0, "step": None, "bytes": len(content), "sha256": digest}
            )
        (self.out / "manifest.json").write_text(json.dumps(self.manifest))
        if self.log:
            keep_log(self.out, self.log)
        return self.out

    def save(self) -> Capture:
        return open_capture(self.write())

    def _read(self, entry: Mapping[str, Any], representation: str) -> torch.Tensor:
        key = entry["representations"][representation]
        if entry["file"] == self._file:
            return self._changed[key]
        with safe_open(self._source / entry["file"], "pt") as file:
            tensor: torch.Tensor = file.get_tensor(key)
            return tensor

    def _write(self, entry: dict[str, Any], values: Mapping[str, torch.Tensor]) -> None:
        """Put all representations of an entry into the file of what is changed, under keys that no other one has."""
        edit = len(self._changed)
        for representation, value in values.items():
            key = f"edit {edit}/{representation}"
            entry["representations"][representation] = key
            self._changed[key] = value.detach().clone().contiguous()
        entry["file"] = self._file


def swap(material: Material, capture: Capture) -> Material:
    """The material with another capture of the same run: batches are read again, references stay as they are."""
    batches = {step: read_step(capture, step, corpus=corpus_of(material.spec)) for step in capture.steps}
    references = {
        step: replace(reference, micro_batches=batches[step])
        for step, reference in material.references.items()
        if step in batches
    }
    return replace(material, run=replace(material.run, capture=capture), batches=batches, references=references)


def swap_merged(material: Material, capture: Capture | None) -> Material:
    """The material with another capture of the merged run."""
    merged = replace(material.others[Role.MERGED], capture=capture)
    return replace(material, others={**material.others, Role.MERGED: merged})


@cache
def corpus_of(spec: RunSpec) -> Corpus | None:
    return render_corpus(spec)


def first_reference(material: Material) -> Reference:
    reference = material.first_reference()
    assert reference is not None
    return reference


def capture_of(material: Material) -> Capture:
    assert material.capture is not None
    return material.capture
