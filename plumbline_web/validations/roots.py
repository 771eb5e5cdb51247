"""Which paths may be read: those that lie, links followed, under one of the installation's roots."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

DEEPEST_LEVEL = 2
"""Below a checkpoint or a data set: the splits of a saved data set, and their files."""

MOST_ENTRIES = 1_000
"""A sharded checkpoint, or a saved data set, has some hundreds; what is larger is refused, never half looked at."""

UNREAD = (FileNotFoundError, NotADirectoryError)
"""What is not there is told by whoever reads it."""


def explain_refusal(text: str, roots: Sequence[Path]) -> str:
    """Why a path may not be read, as the sentence of its field; empty where it may."""
    path = Path(text)
    try:
        allowed = [root.resolve() for root in roots]
        if not path.is_absolute() or not _is_under(path.resolve(), allowed):
            return f"{text} is not under an allowed directory; {_name_roots(roots)}"
        path.stat()
        return _explain_content(path, allowed, roots)
    except UNREAD:
        return ""
    except RuntimeError:  # pathlib's word for links that lead in a circle
        return f"{_shorten(text)} cannot be followed: its links lead in a circle; correct the link"
    except OSError as error:
        return f"{_shorten(text)} cannot be read ({error.strerror}); give a path that the server can read"


def _explain_content(path: Path, allowed: Sequence[Path], roots: Sequence[Path]) -> str:
    """What lies in a directory may be a link too; beside a config.json lie the tokenizer's files."""
    is_directory = path.is_dir()
    directory, levels = (path, DEEPEST_LEVEL) if is_directory else (path.parent, 1)
    if not is_directory and path.name != "config.json":
        return ""
    for count, entry in enumerate(_walk(directory, levels), start=1):
        if count > MOST_ENTRIES:
            found = f"{directory} holds more than {MOST_ENTRIES:,} files and directories"
            return f"{found}; give a directory that holds the checkpoint, or the data set, alone"
        if entry.is_symlink():
            name = Path(entry.path).relative_to(directory)
            try:
                leads_out = not _is_under(Path(entry.path).resolve(), allowed)
            except RuntimeError:
                return f"{name} in {directory} is a link that leads in a circle; correct the link"
            if leads_out:
                found = f"{name} in {directory} is a link that leads out of the allowed directories"
                return f"{found}; copy the file in its place, or {_name_roots(roots)}"
    return ""


def _walk(directory: Path, levels: int) -> Iterator[os.DirEntry[str]]:
    """Entries of a directory before those of its directories. A link is given before what it leads to is looked at."""
    inner = []
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry
            if levels > 1 and entry.is_dir():
                inner.append(Path(entry.path))
    for each in inner:
        yield from _walk(each, levels - 1)


def _is_under(resolved: Path, allowed: Sequence[Path]) -> bool:
    return any(resolved.is_relative_to(root) for root in allowed)


def _name_roots(roots: Sequence[Path]) -> str:
    if not roots:
        return "none is allowed here: an administrator allows one with `plumbline up --root DIR` or PLUMBLINE_ROOTS"
    return f"move it under one of: {', '.join(str(root) for root in roots)}"


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}…{text[-39:]}"
