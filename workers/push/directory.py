"""A capture directory as it is sent: its files with sizes and digests, looked at before a byte leaves this machine."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.errors import BadRequest, CaptureError

MANIFEST = "manifest.json"
SUFFIX = ".safetensors"
REMEDY = "name the directory that `plumbline-capture run --out` wrote"
RECORD_AGAIN = "record the capture again with `plumbline-capture run`"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,149}", re.ASCII)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class LocalFile:
    """One file of the directory: what is announced of it."""

    path: Path
    size: int
    sha256: str

    def announce(self) -> dict[str, Any]:
        return {"name": self.path.name, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class CaptureDirectory:
    """What is sent of a directory, and what its manifest says."""

    path: Path
    files: tuple[Path, ...]
    """the manifest, then the safetensors files by name"""
    left_out: tuple[str, ...]
    """names of what else lies there"""
    manifest: Mapping[str, Any]
    digests: Mapping[str, str]
    """name → SHA-256 that the manifest states"""


def read_directory(path: Path) -> CaptureDirectory:
    """List what is to be sent, and hold the manifest's list of files against what lies there.

    Raises:
        BadRequest: it is no directory, or has no manifest.
        CaptureError: the manifest cannot be read, or a file is missing or was cut short.
    """
    if not path.is_dir():
        raise BadRequest("DIR", f"{path} is no directory", REMEDY)
    manifest_file = path / MANIFEST
    if not manifest_file.is_file():
        raise BadRequest("DIR", f"{path} has no {MANIFEST}, so it is no capture, or one that is not finished", REMEDY)
    try:
        manifest: Any = json.loads(manifest_file.read_bytes())
        sizes = {str(entry["path"]): int(entry["bytes"]) for entry in manifest["files"]}
        digests = {str(entry["path"]): str(entry["sha256"]) for entry in manifest["files"] if entry.get("sha256")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CaptureError(str(manifest_file), "is not the manifest of a capture", RECORD_AGAIN) from error
    for name, size in sizes.items():
        _check_file(path, name, size)
    tensors = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIX) and _NAME.fullmatch(file.name))
    files = (manifest_file, *(file for file in tensors if file.is_file()))
    return CaptureDirectory(
        path=path,
        files=files,
        left_out=tuple(sorted(file.name for file in path.iterdir() if file not in files)),
        manifest=manifest,
        digests=digests,
    )


def _check_file(path: Path, name: str, size: int) -> None:
    if not _NAME.fullmatch(name) or not name.endswith(SUFFIX):
        raise CaptureError(str(path / MANIFEST), f"names a file that no capture has ({name[:80]!r})", RECORD_AGAIN)
    try:
        found = (path / name).stat().st_size
    except OSError as error:
        raise CaptureError(
            str(path / name), f"cannot be read ({error.strerror})", "copy it from where it was"
        ) from None
    if found != size:
        what = f"has {found:,} bytes where the manifest says {size:,}"
        raise CaptureError(str(path / name), what, "copy it again from where it was recorded")


def hash_files(directory: CaptureDirectory, *, on_bytes: Callable[[str, int], None]) -> tuple[LocalFile, ...]:
    """Size and SHA-256 of every file. `on_bytes` is told the name and the bytes that were read of it since.

    Raises:
        CaptureError: a file cannot be read, or is not the one whose SHA-256 the manifest states.
    """
    files = tuple(_hash_file(file, on_bytes) for file in directory.files)
    for file in files:
        if directory.digests.get(file.path.name, file.sha256) != file.sha256:
            found = "is not what was recorded (its sha256 differs from the manifest's)"
            raise CaptureError(str(file.path), found, "copy the capture again")
    return files


def _hash_file(file: Path, on_bytes: Callable[[str, int], None]) -> LocalFile:
    digest, size = hashlib.sha256(), 0
    try:
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
                size += len(block)
                on_bytes(file.name, len(block))
    except OSError as error:
        raise CaptureError(str(file), f"cannot be read ({error.strerror})", "see to its permissions") from error
    return LocalFile(file, size, digest.hexdigest())
