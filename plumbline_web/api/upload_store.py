"""Uploads under way: a directory each, with what was announced and the bytes that have come.

The offset of the next chunk is the size of the file on disk and nothing else, so that a connection that breaks, or a
server that stops, leaves a state that is true. With several web servers the data directory is a shared one, as it is
for the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from django.conf import settings

CHUNK_BYTES = 8 << 20
"""The most that one request carries; small enough that a retry is cheap."""

MOST_FILES = 1024
MOST_BYTES = 8 << 30
"""Of one capture: sketches of a 70B step are tens of MB; whole tensors of a small model are a few GB."""

MOST_MANIFEST_BYTES = 256 << 20
MOST_OPEN = 10
"""Uploads of one person at a time."""

SILENCE_S = 24 * 3600.0
"""An upload that got no byte for so long is given up."""

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BLOCK = 1 << 20


class WrongOffset(ValueError):
    """A chunk that does not begin where the file ends; `received` says where that is."""

    def __init__(self, received: int) -> None:
        super().__init__(f"The next chunk begins at {received:,}; send it from there.")
        self.received = received


class TooLong(ValueError):
    """More bytes than were announced, or than a chunk may have."""


class WrongDigest(ValueError):
    """A chunk whose bytes are not those that its sender hashed."""

    def __init__(self) -> None:
        super().__init__("The chunk has another SHA-256 than its sender says, and none of it was kept; send it again.")


@dataclass(frozen=True)
class AnnouncedFile:
    """One file as its sender described it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Upload:
    """What was announced, by whom; `capture` once it is complete."""

    id: str
    owner: int
    files: tuple[AnnouncedFile, ...]
    capture: int | None = None

    @property
    def directory(self) -> Path:
        return _root() / self.id

    @property
    def content(self) -> Path:
        """The capture directory as it comes in."""
        return self.directory / "content"

    def received(self, number: int) -> int:
        """Bytes of a file that are there."""
        file = self.files[number]
        if self.capture is not None:
            return file.size
        try:
            return (self.content / file.name).stat().st_size
        except FileNotFoundError:
            return 0


def open_upload(files: Sequence[AnnouncedFile], *, owner: int) -> Upload:
    """Begin an upload. The names have been checked: they become names on this disk."""
    upload = Upload(secrets.token_hex(16), owner, tuple(files))
    try:
        upload.content.mkdir(parents=True)
        for file in files:
            (upload.content / file.name).touch()
        _write(upload)
    except OSError:
        discard(upload)  # nobody was told its id
        raise
    return upload


def find_upload(id: str, *, owner: int) -> Upload | None:
    """One's own upload; None where there is none of that id."""
    if not _ID.fullmatch(id):
        return None
    try:
        document = json.loads((_root() / id / "upload.json").read_text())
    except FileNotFoundError:
        return None
    upload = Upload(
        id=document["id"],
        owner=document["owner"],
        files=tuple(AnnouncedFile(**file) for file in document["files"]),
        capture=document["capture"],
    )
    return upload if upload.owner == owner else None


def find_same(files: Sequence[AnnouncedFile], *, owner: int) -> Upload | None:
    """One's own upload of the very same files that is under way; the one that has most of them."""
    wanted = sorted(files, key=lambda file: file.name)
    found = (find_upload(directory.name, owner=owner) for directory in _list())
    same = [
        upload
        for upload in found
        if upload is not None and upload.capture is None and sorted(upload.files, key=lambda file: file.name) == wanted
    ]
    return max(same, key=lambda upload: sum(map(upload.received, range(len(upload.files)))), default=None)


@contextmanager
def announcing(owner: int) -> Iterator[None]:
    """Hold a person's announcements: two that come at once for the same files are to find one upload."""
    _root().mkdir(parents=True, exist_ok=True)
    with (_root() / f"announcing-{owner}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def count_open(owner: int) -> int:
    """How many uploads of a person are under way."""
    found = (find_upload(directory.name, owner=owner) for directory in _list())
    return sum(upload is not None and upload.capture is None for upload in found)


def append_chunk(upload: Upload, number: int, source: BinaryIO, *, offset: int, length: int) -> int:
    """Append `length` bytes of `source` at `offset` of a file; the bytes that are there now.

    Raises:
        WrongOffset, TooLong: nothing was written.
    """
    file = upload.files[number]
    check_length(length)
    with (upload.content / file.name).open("ab") as target:
        fcntl.flock(target, fcntl.LOCK_EX)  # a repeated chunk may arrive beside the first
        received = os.fstat(target.fileno()).st_size
        if offset != received:
            raise WrongOffset(received)
        if offset + length > file.size:
            raise TooLong(f"{file.name} was announced with {file.size:,} bytes; this chunk would end beyond.")
        left = length
        while left and (block := source.read(min(left, _BLOCK))):
            target.write(block)
            left -= len(block)
        return received + length - left


def read_checked(source: BinaryIO, *, length: int, sha256: bytes) -> BinaryIO:
    """A chunk in memory, its bytes those that its sender hashed.

    Raises:
        TooLong: it is longer than a chunk may be; nothing was read.
        WrongDigest: it is not what was sent, or the connection broke off in it.
    """
    check_length(length)
    content = source.read(length)
    if len(content) != length or hashlib.sha256(content).digest() != sha256:
        raise WrongDigest
    return BytesIO(content)


def check_length(length: int) -> None:
    """Raises TooLong."""
    if length > CHUNK_BYTES:
        raise TooLong(f"A chunk of {length:,} bytes was sent; send at most {CHUNK_BYTES:,}.")


@contextmanager
def completing(upload: Upload) -> Iterator[Upload]:
    """Hold an upload while it becomes a capture; as it then is, for another request may have completed it."""
    with (upload.directory / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield find_upload(upload.id, owner=upload.owner) or upload


def note_capture(upload: Upload, capture: int) -> Upload:
    """It is complete: its bytes are in the store, and a repeated request is told which capture it became."""
    complete = Upload(upload.id, upload.owner, upload.files, capture)
    _write(complete)
    shutil.rmtree(upload.content, ignore_errors=True)
    return complete


def discard(upload: Upload) -> None:
    shutil.rmtree(upload.directory, ignore_errors=True)


def sweep() -> None:
    """Take away uploads that have been silent for too long."""
    for directory in _list():
        newest = max(
            (path.stat().st_mtime for path in (directory, *directory.rglob("*")) if path.exists()), default=0.0
        )
        if newest < time.time() - SILENCE_S:
            shutil.rmtree(directory, ignore_errors=True)


def _write(upload: Upload) -> None:
    file = upload.directory / "upload.json"
    aside = file.with_name(f".upload.{secrets.token_hex(4)}")
    aside.write_text(json.dumps(asdict(upload)))
    aside.replace(file)


def _root() -> Path:
    return Path(settings.DATA) / "uploads"


def _list() -> list[Path]:
    root = _root()
    return [path for path in root.iterdir() if _ID.fullmatch(path.name)] if root.is_dir() else []
