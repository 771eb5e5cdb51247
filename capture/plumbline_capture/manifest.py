"""Merge what each rank recorded into the capture's manifest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List

from plumbline_capture import __version__
from plumbline_capture.format import (
    FORMAT,
    VERSION,
    Missing,
    checkpoint_file_name,
    export_file_name,
    utc_now,
    write_json,
)
from plumbline_capture.settings import Settings


def write_manifest(out: Path, *, settings: Settings, command: List[str], exit_code: int, started: str) -> None:
    """Write `manifest.json` of a capture directory from its ranks' files, and take those away."""
    parts, missing = _read_parts(out)
    recorded = [part for part in parts if part["steps"]]
    for part in parts:
        missing.extend(Missing(**note) for note in part["missing"])
    for part in recorded:
        missing.extend(_lost_files(out, part))
        missing.extend(_steps_not_reached(settings, part))
    saved, unread = _read_checkpoints(out, settings)
    missing.extend(unread)
    exported, unasked = _read_export(out, settings)
    missing.extend(unasked)
    measured = _read_memory(out, missing) if settings.memory else []
    apart = [*recorded, *saved, *exported]
    if not recorded and not any(note.what == "step" for note in missing):
        why = "no optimizer step of a torch model was seen in any process of the command"
        missing.append(Missing(rank=None, step=None, what="step", why=why))
    manifest: Dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "recorder": {
            "version": __version__,
            "mode": settings.mode,
            "steps": list(settings.steps),
            "modules": settings.modules,
        },
        "command": command,
        "exit_code": exit_code,
        "started": started,
        "finished": utc_now(),
        "world_size": len(recorded),
        "missing": [dataclasses.asdict(note) for note in missing],
        "environment": recorded[0]["environment"] if recorded else None,
        "ranks": [
            {key: part[key] for key in ("rank", "local_rank", "pid", "mesh", "steps", "rows", "scaling")}
            for part in recorded
        ],
        "checkpoints": [part["checkpoint"] for part in saved],
        "exports": [part["export"] for part in exported],
        "memory": measured,
        "files": [file for part in apart for file in part["files"]],
        "tensors": [entry for part in apart for entry in part["tensors"]],
    }
    if settings.run_spec is not None:
        manifest["run_spec"] = settings.run_spec
    write_json(out / "manifest.json", manifest)
    for leftover in [*out.glob("rank*.json"), *out.glob("checkpoint*.json"), *out.glob(".*.tmp-*"), _export_part(out)]:
        leftover.unlink(missing_ok=True)


def _read_memory(out: Path, missing: List[Missing]) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    for path in sorted(out.glob("memory*.json")):
        found.append(json.loads(path.read_text(encoding="utf-8")))
        path.unlink()
    if not found:
        missing.append(Missing(rank=None, step=None, what="memory", why="no process of the command was metered"))
    return found


NOT_REACHED = "the command ended before this step was recorded"
"""Why a step that was asked for is missing where nothing went wrong with the recording."""


def _read_parts(out: Path) -> "tuple[List[Dict[str, Any]], List[Missing]]":
    parts: List[Dict[str, Any]] = []
    missing: List[Missing] = []
    for path in sorted(out.glob("rank*.json")):
        try:
            parts.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError:  # claimed, and the process ended before it wrote anything
            missing.append(
                Missing(
                    rank=int(path.stem[4:9]), step=None, what="step", why="its process ended before it had recorded one"
                )
            )
    return sorted(parts, key=lambda part: int(part["rank"])), missing


def _read_checkpoints(out: Path, settings: Settings) -> "tuple[List[Dict[str, Any]], List[Missing]]":
    """Return what was read of each saved checkpoint, and notes of what was not; one not read at all is empty."""
    saved: List[Dict[str, Any]] = []
    missing: List[Missing] = []
    for index, directory in enumerate(settings.checkpoints):
        file = out / checkpoint_file_name(index)
        try:
            saved.append(json.loads(file.with_suffix(".json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            file.unlink(missing_ok=True)
            saved.append({"checkpoint": {"directory": directory}, "files": [], "tensors": [], "missing": []})
            why = "the command was stopped, or the process that reads it ended early"
            missing.append(Missing(rank=None, step=None, what=f"checkpoint {Path(directory).name}", why=why))
        missing.extend(Missing(**note) for note in saved[-1]["missing"])
    return saved, missing


def _export_part(out: Path) -> Path:
    return (out / export_file_name()).with_suffix(".json")


def _read_export(out: Path, settings: Settings) -> "tuple[List[Dict[str, Any]], List[Missing]]":
    """Return what the exported model answered, empty where none was asked for, and notes of what went wrong."""
    if settings.export is None:
        return [], []
    try:
        part = json.loads(_export_part(out).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        (out / export_file_name()).unlink(missing_ok=True)
        why = "the command was stopped, or the process that asks the exported model ended early"
        return [], [Missing(rank=None, step=None, what="export", why=why)]
    return [part], [Missing(**note) for note in part["missing"]]


def _lost_files(out: Path, part: Dict[str, Any]) -> List[Missing]:
    return [
        Missing(rank=part["rank"], step=file["step"], what=file["path"], why="the file is gone or was cut short")
        for file in part["files"]
        if not (out / file["path"]).is_file() or (out / file["path"]).stat().st_size != file["bytes"]
    ]


def _steps_not_reached(settings: Settings, part: Dict[str, Any]) -> List[Missing]:
    reached = {record["step"] for record in part["steps"]}
    return [
        Missing(rank=part["rank"], step=step, what="step", why=NOT_REACHED)
        for step in settings.steps
        if step not in reached
    ]
