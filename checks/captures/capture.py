"""Captures as typed values: the manifest's records and lazily read tensors. Format: docs/capture-format.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from checks.captures.files import StoredTensor, load, read_header
from checks.captures.log import LogRecord, load_log
from checks.captures.records import MicroBatchRecord, Missing, StepRecord, parse_missing, parse_step
from checks.errors import CaptureError

FORMAT = "plumbline-capture"
VERSION = 1
RECORD_AGAIN = "record the capture again with `plumbline-capture run`"


@dataclass(frozen=True)
class TensorRecord:
    """One recorded tensor; each representation is read when asked for, None when it was not recorded.

    `where`: [start, stop) of its part in each dimension of the whole; `placement`: mesh axis → `shard`, `partial` or
    `replicate`, empty for a tensor that says nothing about ranks.
    """

    name: str
    kind: str
    field: str | None
    micro_batch: int | None
    dtype: str
    global_shape: tuple[int, ...]
    stats: Mapping[str, float | None]
    representations: Mapping[str, StoredTensor]
    where: tuple[tuple[int, int], ...] = ()
    placement: Mapping[str, str] = dataclass_field(default_factory=dict)

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite part, accumulated in float64 by the recorder; NaN where nothing is finite."""
        norm = self.stats["norm"]
        return math.nan if norm is None else float(norm)

    @property
    def nonfinite(self) -> int:
        return int(self.stats["nonfinite"] or 0)

    def read(self, representation: str) -> torch.Tensor | None:
        """The `full`, `sketch`, `sample` or `row_norms` representation, in its stored dtype."""
        stored = self.representations.get(representation)
        return None if stored is None else load(stored)


@dataclass(frozen=True)
class StandIn:
    """A file that was preloaded into the framework's process, and the code that it stood in for."""

    name: str
    replaces: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """An opened capture directory. Tensors are looked up by step, rank and kind; names are canonical."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({record.step for record in self.records.get(0, {}).values()}))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.records))

    @cached_property
    def records(self) -> Mapping[int, Mapping[int, StepRecord]]:
        """rank → step → record"""
        return {int(rank["rank"]): self._parse_steps(rank) for rank in self.manifest["ranks"]}

    def _parse_steps(self, rank: Mapping[str, Any]) -> Mapping[int, StepRecord]:
        found = {}
        for step in rank["steps"]:
            place = ((int(rank["rank"]), None), (int(step["step"]), None))
            missing = tuple(note for note in self.missing if note.rank in place[0] and note.step in place[1])
            found[int(step["step"])] = parse_step(step, file=str(self.path), missing=missing)
        return found

    @cached_property
    def mesh(self) -> Mapping[int, Mapping[str, int]]:
        """rank → its coordinate on each axis along which the framework divides its work; empty where none is told"""
        return {int(rank["rank"]): rank.get("mesh") or {} for rank in self.manifest["ranks"]}

    @cached_property
    def missing(self) -> tuple[Missing, ...]:
        return parse_missing(self.manifest.get("missing", ()))

    @property
    def packages(self) -> Mapping[str, str]:
        """name → version in the framework's process; empty where no step was recorded."""
        environment = self.manifest.get("environment") or {}
        packages: Mapping[str, str] = environment.get("packages", {})
        return packages

    @property
    def stand_ins(self) -> tuple[StandIn, ...]:
        """What stood in for code that the machine lacks; empty but in tests of this project."""
        environment = self.manifest.get("environment") or {}
        found = environment.get("stand_ins", ())
        return tuple(StandIn(str(each["name"]), tuple(map(str, each["replaces"]))) for each in found)

    @cached_property
    def log(self) -> tuple[LogRecord, ...]:
        """What the framework itself logged of every step; empty where that was not kept."""
        return load_log(self.path)

    def step(self, step: int, *, rank: int = 0) -> StepRecord:
        try:
            return self.records[rank][step]
        except KeyError:
            raise CaptureError(str(self.path), f"holds no step {step} of rank {rank}", RECORD_AGAIN) from None

    @cached_property
    def _index(self) -> Mapping[tuple[int, int, str], tuple[TensorRecord, ...]]:
        headers: dict[str, dict[str, StoredTensor]] = {}
        index: dict[tuple[int, int, str], list[TensorRecord]] = {}
        for entry in self.manifest["tensors"]:
            file = str(entry["file"])
            _refuse_outside(self.path, file)
            if file not in headers:
                headers[file] = read_header(self.path / file)
            record = _tensor_record(entry, headers[file], self.path)
            index.setdefault((int(entry["step"]), int(entry["rank"]), record.kind), []).append(record)
        return {key: tuple(records) for key, records in index.items()}

    def all_tensors(self, step: int, kind: str, *, rank: int = 0) -> tuple[TensorRecord, ...]:
        """Every record of one kind, in the order of the manifest."""
        return self._index.get((step, rank, kind), ())

    def tensors(self, step: int, kind: str, *, field: str | None = None, rank: int = 0) -> Mapping[str, TensorRecord]:
        """name → record of one kind; of one field where `field` is given."""
        return {
            record.name: record
            for record in self._index.get((step, rank, kind), ())
            if field is None or record.field == field
        }

    def micro_batch_tensors(self, step: int, kind: str, index: int, *, rank: int = 0) -> Mapping[str, TensorRecord]:
        """name (or name/field where a field is set) → record of one micro-batch."""
        return {
            record.name if record.field is None else f"{record.name}/{record.field}": record
            for record in self._index.get((step, rank, kind), ())
            if record.micro_batch == index
        }

    def micro_batches(self, step: int, *, rank: int = 0) -> tuple[MicroBatchRecord, ...]:
        return self.step(step, rank=rank).micro_batches


def _tensor_record(entry: Mapping[str, Any], header: Mapping[str, StoredTensor], path: Path) -> TensorRecord:
    named = entry["representations"]
    try:
        stored = {kind: header[key] for kind, key in named.items()}
    except KeyError as error:
        found = f"has no tensor {error.args[0]!r} that the manifest names"
        raise CaptureError(str(path / str(entry["file"])), found, RECORD_AGAIN) from None
    return TensorRecord(
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        field=entry.get("field"),
        micro_batch=entry.get("micro_batch"),
        dtype=str(entry["dtype"]),
        global_shape=tuple(entry["global_shape"]),
        stats=entry["stats"],
        representations=stored,
        where=tuple((int(a), int(b)) for a, b in entry.get("slice") or [(0, size) for size in entry["global_shape"]]),
        placement=entry.get("placement") or {},
    )


def _refuse_outside(path: Path, file: str) -> None:
    if Path(file).name != file:
        raise CaptureError(str(path), f"names a file outside itself ({file!r})", RECORD_AGAIN)


def open_capture(path: Path) -> Capture:
    """Open a capture directory and check its manifest, its files and their headers.

    Raises:
        CaptureError: no manifest, a foreign or newer one, or a file that is missing, truncated or foreign.
    """
    file = path / "manifest.json"
    if not file.is_file():
        raise CaptureError(str(path), "holds no manifest.json, so it is not a capture", RECORD_AGAIN)
    try:
        manifest: Any = json.loads(file.read_text())
    except ValueError as error:
        raise CaptureError(str(file), "is not valid JSON", RECORD_AGAIN) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CaptureError(str(file), "is not a Plumbline manifest", RECORD_AGAIN)
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CaptureError(
            str(file), f"has format version {version}, newer than {VERSION}", "upgrade Plumbline to read it"
        )
    try:
        capture = Capture(path, manifest)
        _ = capture.records, capture._index
        for entry in manifest["files"]:
            _refuse_outside(path, str(entry["path"]))
            size = (path / entry["path"]).stat().st_size
            if size != entry["bytes"]:
                found = f"has {size} bytes where the manifest says {entry['bytes']}"
                raise CaptureError(str(path / entry["path"]), found, RECORD_AGAIN)
    except OSError as error:
        raise CaptureError(str(error.filename), f"cannot be read ({error.strerror})", RECORD_AGAIN) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CaptureError):
            raise
        raise CaptureError(str(file), f"lacks or misstates the field {error}", RECORD_AGAIN) from error
    return capture
