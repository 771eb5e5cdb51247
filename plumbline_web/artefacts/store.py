"""The store: one file a content, under its SHA-256, in a local directory. Nothing in it is ever changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from django.conf import settings
from django.utils import timezone

from plumbline_web.artefacts.models import Artefact

_BLOCK = 1 << 20


class MissingArtefact(LookupError):
    """A file that the database knows is gone from the disk, or is no longer what it was; `str()` says which."""


def locate(digest: str) -> Path:
    """Where a content lies, or would lie."""
    return Path(settings.DATA) / "artefacts" / digest[:2] / digest


def store_file(path: Path) -> Artefact:
    """Take a file's content into the store. The file itself may go afterwards; the same content is kept once."""
    target = locate(digest := _hash(path))
    if not _is_whole(target, path.stat().st_size):
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{digest}.{uuid.uuid4().hex}")
        shutil.copyfile(path, aside)
        aside.chmod(0o444)
        aside.replace(target)
    artefact, _ = Artefact.objects.get_or_create(digest=digest, defaults={"size": path.stat().st_size})
    if artefact.missing_since is not None:
        artefact.missing_since = None
        artefact.save(update_fields=["missing_since"])
    return artefact


def store_text(text: str) -> Artefact:
    """Take a text into the store, as UTF-8."""
    aside = Path(settings.DATA) / "artefacts" / f".text.{uuid.uuid4().hex}"
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        aside.write_text(text, encoding="utf-8")
        return store_file(aside)
    finally:
        aside.unlink(missing_ok=True)


def open_artefact(artefact: Artefact) -> BinaryIO:
    """Open a content for reading, its digest checked first.

    Raises:
        MissingArtefact: it is gone from the disk or changed there; the row then says since when.
    """
    path = locate(artefact.digest)
    if not _is_whole(path, artefact.size) or _hash(path) != artefact.digest:
        _note_missing(artefact)
        raise MissingArtefact(_describe(artefact))
    return path.open("rb")


def materialise(artefact: Artefact, target: Path) -> None:
    """Put a content under a name of its own, its digest checked on the way.

    Raises:
        MissingArtefact: it is gone, or its bytes are no longer those of its digest.
    """
    source = locate(artefact.digest)
    if not _is_whole(source, artefact.size) or _hash(source) != artefact.digest:
        _note_missing(artefact)
        raise MissingArtefact(_describe(artefact))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def digest_files(names: Sequence[tuple[str, str]]) -> str:
    """One digest of a directory: SHA-256 over its files' names and digests, in the order of the names."""
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()


def _note_missing(artefact: Artefact) -> None:
    if artefact.missing_since is None:
        Artefact.objects.filter(pk=artefact.pk, missing_since__isnull=True).update(missing_since=timezone.now())


def _describe(artefact: Artefact) -> str:
    return (
        f"the stored file {artefact.digest[:12]} ({artefact.size:,} bytes) is missing or changed on disk; "
        "restore it from a backup, or run the validation again with fresh captures"
    )


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
