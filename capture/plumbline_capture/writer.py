"""Write a captured step, and keep the rank's part of the manifest up to date; both whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Dict

from safetensors.torch import save_file

from plumbline_capture.environment import describe_environment
from plumbline_capture.format import (
    FORMAT,
    VERSION,
    file_sha256,
    rank_file_name,
    step_file_name,
    temporary_path,
    write_json,
)
from plumbline_capture.mapped import note_unfilled
from plumbline_capture.state import Recorder, rank_of_process


def write_step(recorder: Recorder) -> None:
    """Write the step's tensors to their file, and add the step to the rank's JSON file."""
    if not _claim_rank(recorder):
        return
    note_unfilled(recorder)
    rank = rank_of_process()
    path = Path(recorder.settings.out) / step_file_name(recorder.step, rank)
    temporary = temporary_path(path)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the umask has it; safetensors makes files for their owner only
        save_file(recorder.now.tensors, str(temporary), metadata={"format": FORMAT, "version": str(VERSION)})
        temporary.chmod(mode)
        digest = file_sha256(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    recorder.files.append(
        {"path": path.name, "rank": rank, "step": recorder.step, "bytes": path.stat().st_size, "sha256": digest}
    )
    recorder.entries.extend(recorder.now.entries.values())
    recorder.step_records.append(_step_record(recorder))
    if recorder.environment is None:
        recorder.environment = {**describe_environment(), "stand_ins": recorder.stand_ins}
        recorder.environment["packages"].update(recorder.stated_packages)


def _claim_rank(recorder: Recorder) -> bool:
    """Make this process the one that records its rank; return False where another process of this rank does."""
    if recorder.rank_file is not None:
        return True
    name = rank_file_name(rank_of_process())
    try:
        os.close(os.open(Path(recorder.settings.out) / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        recorder.note_missing(f"process {recorder.pid}", f"another process recorded rank {rank_of_process()} before it")
        recorder.finished = True
        return False
    recorder.rank_file = name
    return True


def publish(recorder: Recorder) -> None:
    """Write the process's JSON file as things stand; one that has recorded no step leaves the rank's name free."""
    rank = rank_of_process()
    name = recorder.rank_file or f"{Path(rank_file_name(rank)).stem}-{recorder.pid}.json"
    content: Dict[str, Any] = {
        "rank": rank,
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "pid": recorder.pid,
        "mesh": recorder.mesh,
        "steps": recorder.step_records,
        "tensors": [vars(entry) for entry in recorder.entries],
        "files": recorder.files,
        "rows": recorder.rows,
        "scaling": [] if recorder.scaling is None else recorder.scaling.attempts,
        "missing": [dataclasses.asdict(note) for note in recorder.missing],
        "environment": recorder.environment,
    }
    write_json(Path(recorder.settings.out) / name, content)
    recorder.published, recorder.rows_published = len(recorder.missing), len(recorder.rows)
    if recorder.scaling is not None:
        recorder.scaling.published = len(recorder.scaling.attempts)


def publish_last_notes(recorder: Recorder) -> None:
    """At the end of the process: write what was found missing, or trained on, since the last step was recorded."""
    if recorder.meter is not None and os.getpid() == recorder.pid:
        with recorder.shielded("memory"):
            recorder.meter.finish()
    taken = recorder.step - 1
    if taken and not recorder.step_records and not recorder.finished and os.getpid() == recorder.pid:
        for step in recorder.settings.steps:
            why = f"the command ended after {taken} optimizer step{'s' * (taken > 1)}"
            recorder.note_missing("step", why, step=step)
    scaling = recorder.scaling
    new = len(recorder.rows) > recorder.rows_published or (
        scaling is not None and len(scaling.attempts) > scaling.published
    )
    if (
        (recorder.rank_file is not None and new) or len(recorder.missing) > recorder.published
    ) and os.getpid() == recorder.pid:
        with recorder.shielded("rank file"):
            publish(recorder)


def _step_record(recorder: Recorder) -> Dict[str, Any]:
    record = recorder.now.record
    if "model" in record:
        record["model"].update(recorder.now.observed)
    return {
        "step": recorder.step,
        "model": record.get("model"),
        "scalars": record.get("scalars", {}),
        "trainable": record.get("trainable", []),
        "frozen": record.get("frozen", []),
        "micro_batches": [micro_batch.to_record() for micro_batch in recorder.now.micro_batches],
        "clips": recorder.now.clips,
        "optimizer": record.get("optimizer"),
        "rng": record.get("rng"),
    }
