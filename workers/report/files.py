"""Files and directories of results: known to be writable before anything runs, and files whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from checks.errors import BadRequest


def check_writable(path: Path, *, field: str) -> None:
    """Raise BadRequest, naming the option `field`, when `path` could not be written; leaves nothing behind."""
    directory = path.parent
    if path.is_dir():
        raise BadRequest(field, f"{path} is a directory", "name a file")
    if not directory.is_dir():
        raise BadRequest(field, f"{directory} is not a directory", "make it, or name a file elsewhere")
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{path.name}."):
            pass
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        found = f"{path} cannot be written ({error.strerror})"
        raise BadRequest(field, found, "name a file that you may write") from None


def make_directory(directory: Path, *, field: str) -> None:
    """Make a directory, unless it is there; raise BadRequest, naming the option `field`, where it cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"{directory} cannot be made a directory ({error.strerror})"
        raise BadRequest(field, found, "name a new directory") from None


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside `path` and rename it, so that no reader sees half of it."""
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
