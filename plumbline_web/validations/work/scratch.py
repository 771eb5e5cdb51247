"""The directory in which a job works, and how stored captures come into it and new ones out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from checks.captures.capture import Capture as RecordedCapture
from plumbline_web.artefacts.models import Artefact
from plumbline_web.artefacts.store import digest_files, materialise, store_file
from plumbline_web.jobs.domain import Lease
from plumbline_web.jobs.scratch import remove_scratch, scratch_of
from plumbline_web.validations.models import Capture, CaptureFile, FrameworkRun
from workers.jobs.documents import StoredOutcome


@contextmanager
def scratch_directory(lease: Lease) -> Iterator[Path]:
    """A directory of this lease alone; it goes with the work."""
    remove_scratch(lease.tag)
    directory = scratch_of(lease.tag)
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        remove_scratch(lease.tag)


def reference_cache() -> Path:
    """References that were computed on this machine; evicted at will, the store has them too."""
    return Path(settings.DATA) / "references"


@dataclass(frozen=True)
class StoredFiles:
    """A capture directory's files in the store: name and content of each, and what its manifest says."""

    files: tuple[tuple[str, Artefact], ...]
    steps: tuple[int, ...]
    tensors: int
    whole: bool


def store_files(directory: Path, recorded: RecordedCapture) -> StoredFiles:
    """Take a capture directory's files into the store; it may be gigabytes."""
    files = sorted(file for file in directory.iterdir() if file.is_file())
    return StoredFiles(
        files=tuple((file.name, store_file(file)) for file in files),
        steps=recorded.steps,
        tensors=count_tensors(directory / "manifest.json"),
        whole=not recorded.missing,
    )


def write_capture(stored: StoredFiles, *, run: FrameworkRun) -> Capture:
    """Write the rows of a stored capture."""
    capture = Capture.objects.create(
        run=run,
        digest=digest_files([(name, artefact.digest) for name, artefact in stored.files]),
        size=sum(artefact.size for _, artefact in stored.files),
        framework=run.framework.name,
        steps=list(stored.steps),
        tensors=stored.tensors,
        whole=stored.whole,
    )
    CaptureFile.objects.bulk_create(
        CaptureFile(capture=capture, name=name, artefact=artefact) for name, artefact in stored.files
    )
    return capture


def count_tensors(manifest: Path) -> int:
    return len(json.loads(manifest.read_text()).get("tensors", ()))


def lay_out(run: FrameworkRun, directory: Path) -> StoredOutcome:
    """Put a run's capture under `directory` and say how the run ended. Raises MissingArtefact."""
    capture = getattr(run, "capture", None)
    if capture is not None:
        for file in capture.files.select_related("artefact"):
            materialise(file.artefact, directory / file.name)
    return StoredOutcome(
        ending=run.ending,
        exit_code=run.exit_code,
        seconds=run.elapsed_s or 0.0,
        last_error=run.last_error or None,
        last_output=run.last_output,
        capture=str(directory) if capture is not None else None,
        unreadable=run.unreadable or None,
    )
