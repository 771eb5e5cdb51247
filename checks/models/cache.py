"""A directory cache that several processes may fill at once: built aside, renamed, rebuilt when damaged."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from checks.errors import BadRequest

SEAL = "plumbline.json"
"""file → SHA-256 of every file of a cached directory; written last, so that it vouches for the others"""
_CHUNK = 1 << 20


def locate_cache() -> Path:
    """Return the directory of cached models: $XDG_CACHE_HOME or ~/.cache, then plumbline/models."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and to be ignored.
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return base / "plumbline" / "models"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Return the cached directory `name`, calling `build` with an empty directory where it is missing or damaged.

    Concurrent callers wait for one builder. A directory appears whole or not at all. Raises BadRequest when the cache
    cannot be written.
    """
    cache = locate_cache()
    target = cache / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f".{name}.lock"):
            if is_intact(target):
                return target
            aside = cache / f".{name}.tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            aside.mkdir()
            try:
                build(aside)
                _seal(aside)
                if target.exists():
                    shutil.rmtree(target)
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        found = f"{cache} cannot be written ({error.strerror or error})"
        raise BadRequest("XDG_CACHE_HOME", found, "set it to a directory with room that you may write") from None
    return target


def is_intact(directory: Path) -> bool:
    """Say whether every file that the seal lists is there with the content it had."""
    try:
        listed = json.loads((directory / SEAL).read_text(encoding="utf-8"))
        return bool(listed) and all(hash_file(directory / name) == digest for name, digest in listed.items())
    except (OSError, ValueError, AttributeError):
        return False


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def hash_content(content: Mapping[str, object]) -> str:
    """Return a 12-digit key of JSON content, the same for equal content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _seal(directory: Path) -> None:
    listed = {path.name: hash_file(path) for path in sorted(directory.iterdir())}
    (directory / SEAL).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock, which the system drops should the holder die."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
