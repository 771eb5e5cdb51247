"""A tar that is written while it is sent: no temporary file, one block in memory."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from datetime import datetime

from plumbline_web.artefacts.store import open_artefact
from plumbline_web.validations.models import CaptureFile

_BLOCK = 1 << 20


def stream_archive(files: Sequence[CaptureFile], *, folder: str, at: datetime) -> Iterator[bytes]:
    """An uncompressed tar of `files` in a directory `folder`; GNU's format, for files beyond 8 GiB."""
    for file in files:
        yield _header(f"{folder}/{file.name}", file.artefact.size, at)
        with open_artefact(file.artefact) as content:
            while block := content.read(_BLOCK):
                yield block
        yield b"\0" * _padding(file.artefact.size)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def measure_archive(files: Sequence[CaptureFile], *, folder: str, at: datetime) -> int:
    """Bytes of that tar."""
    headers = sum(len(_header(f"{folder}/{file.name}", file.artefact.size, at)) for file in files)
    return headers + sum(file.artefact.size + _padding(file.artefact.size) for file in files) + 2 * tarfile.BLOCKSIZE


def _header(name: str, size: int, at: datetime) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = int(at.timestamp())
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE
