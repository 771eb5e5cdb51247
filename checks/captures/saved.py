"""What a capture holds of the checkpoints that its command saved. Format: docs/capture-format.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.captures.capture import Capture, TensorRecord
from checks.errors import CaptureError


@dataclass(frozen=True)
class SavedCheckpoint:
    """One saved directory.

    `parameters`: canonical name → tensor; `copies`: embedding → the copies of it that the file holds under the name of
    a tied head; `states`: (parameter, field) → optimizer state; `config`, `adapter_config`: flat with dotted keys, None
    where there is no such file; `contradictions`: where the index and the files differ; `unread`: what could not be
    read, with the reason.
    """

    directory: str
    parameters: Mapping[str, TensorRecord]
    copies: Mapping[str, tuple[TensorRecord, ...]]
    states: Mapping[tuple[str, str], TensorRecord]
    config: Mapping[str, object] | None
    adapter_config: Mapping[str, object] | None
    global_step: int | None
    contradictions: tuple[str, ...]
    unread: tuple[str, ...]


def read_saved(capture: Capture) -> tuple[SavedCheckpoint, ...]:
    """Every checkpoint of a capture, in the order in which they were asked for.

    Raises:
        CaptureError: the manifest's `checkpoints` are no list of objects.
    """
    described = capture.manifest.get("checkpoints", [])
    if not isinstance(described, list) or not all(isinstance(entry, dict) for entry in described):
        found = "has checkpoints that are no list of objects"
        raise CaptureError(str(capture.path / "manifest.json"), found, "record the capture again")
    return tuple(_read(capture, index, entry) for index, entry in enumerate(described))


def _read(capture: Capture, index: int, entry: Mapping[str, Any]) -> SavedCheckpoint:
    directory = str(entry.get("directory", ""))
    named = f"checkpoint {directory.rpartition('/')[2]}"
    step = entry.get("global_step")
    weights = capture.all_tensors(index, "checkpoint")
    copies: dict[str, tuple[TensorRecord, ...]] = {}
    for record in weights:
        if record.field is not None:
            copies[record.name] = (*copies.get(record.name, ()), record)
    return SavedCheckpoint(
        directory=directory,
        parameters={record.name: record for record in weights if record.field is None},
        copies=copies,
        states={(r.name, r.field or ""): r for r in capture.all_tensors(index, "checkpoint_state")},
        config=flatten(entry.get("config")),
        adapter_config=flatten(entry.get("adapter_config")),
        global_step=step if isinstance(step, int) else None,
        contradictions=tuple(str(error) for error in entry.get("index_errors") or ()),
        unread=tuple(f"{note.what}: {note.why}" for note in capture.missing if note.what.startswith(named)),
    )


def flatten(content: object) -> Mapping[str, object] | None:
    """The values of a configuration that is nested, by dotted keys."""
    if not isinstance(content, dict):
        return None
    flat: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": item for inner, item in (flatten(value) or {}).items()}
        else:
            flat[str(key)] = value
    return flat
