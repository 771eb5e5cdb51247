"""From an upload to a capture: names before they touch the disk, digests, headers, and only then the content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from django.db import transaction

from checks.errors import CaptureError
from plumbline_web.accounts.models import User
from plumbline_web.api.errors import ApiError, invalid
from plumbline_web.api.manifest import check_manifest, refuse_deep
from plumbline_web.api.upload_store import (
    MOST_BYTES,
    MOST_FILES,
    MOST_MANIFEST_BYTES,
    AnnouncedFile,
    Upload,
    completing,
    note_capture,
)
from plumbline_web.artefacts.store import digest_files, store_file
from plumbline_web.validations.models import Capture, CaptureFile
from plumbline_web.validations.origin import read_origin
from workers.report.as_json import to_plain

MANIFEST = "manifest.json"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,149}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BLOCK = 1 << 20


def read_announcement(files: object) -> tuple[AnnouncedFile, ...]:
    """The files that a sender announces.

    Raises:
        ApiError: 400, naming every wrong entry; 413, too many or too large.
    """
    if not isinstance(files, list) or not files:
        raise invalid({"files": "is not a list of files; give name, size and sha256 of each"})
    if len(files) > MOST_FILES:
        raise ApiError(413, f"{len(files):,} files were announced; a capture has at most {MOST_FILES:,}.")
    errors: dict[str, str] = {}
    found = [_read_file(entry, f"files.{number}", errors) for number, entry in enumerate(files)]
    names = [file.name for file in found]
    for name in sorted({name for name in names if names.count(name) > 1 and name}):
        errors["files"] = f"{name} is announced twice; announce each file once"
    if not errors and MANIFEST not in names:
        errors["files"] = f"has no {MANIFEST}; a directory without one is no capture"
    if errors:
        raise invalid(dict(list(errors.items())[:50]))
    total = sum(file.size for file in found)
    if total > MOST_BYTES:
        raise ApiError(413, f"{total:,} bytes were announced; a capture has at most {MOST_BYTES:,}: record sketches.")
    return tuple(found)


def find_whole(files: Sequence[AnnouncedFile], *, by: User) -> Capture | None:
    """One's own uploaded capture of the very same files, all of them in the store still."""
    digest = digest_files([(file.name, file.sha256) for file in files])
    own = Capture.objects.filter(uploaded_by=by, digest=digest)
    return own.exclude(files__artefact__missing_since__isnull=False).order_by("pk").first()


def make_capture(upload: Upload, *, by: User) -> tuple[Capture, bool]:
    """Check all that has come in and take it into the store; the second value is False where that was done before.

    Raises:
        ApiError: 409, bytes are missing; 400, a digest, a header or the manifest is wrong.
    """
    with completing(upload) as current:
        if current.capture is not None:
            return Capture.objects.get(pk=current.capture), False
        _check_whole(current)
        capture = _store(current, by=by)
        note_capture(current, capture.pk)
    return capture, True


def _read_file(entry: object, place: str, errors: dict[str, str]) -> AnnouncedFile:
    values: Mapping[str, object] = entry if isinstance(entry, dict) else {}
    name, size, sha256 = values.get("name"), values.get("size"), values.get("sha256")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not _is_allowed(name):
        errors[f"{place}.name"] = f"is neither {MANIFEST} nor a plain name that ends in .safetensors"
        name = ""
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        errors[f"{place}.size"] = "is not a number of bytes"
        size = 0
    elif name == MANIFEST and size > MOST_MANIFEST_BYTES:
        errors[f"{place}.size"] = f"is {size:,}; a manifest has at most {MOST_MANIFEST_BYTES:,} bytes"
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        errors[f"{place}.sha256"] = "is not a SHA-256: 64 hexadecimal digits in lower case"
        sha256 = ""
    return AnnouncedFile(name, size, sha256)


def _is_allowed(name: str) -> bool:
    return name == MANIFEST or name.endswith(".safetensors")


def _check_whole(upload: Upload) -> None:
    missing = [file.name for number, file in enumerate(upload.files) if upload.received(number) != file.size]
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ApiError(409, f"Bytes are missing of {names}; send them first.", code="incomplete")
    errors = {
        f"files.{number}.sha256": f"{file.name} has another SHA-256 than announced; upload it again in a new upload"
        for number, file in enumerate(upload.files)
        if _hash(upload.content / file.name) != file.sha256
    }
    if errors:
        raise invalid(errors)


def _store(upload: Upload, *, by: User) -> Capture:
    # torch, which reading captures needs, is loaded by the process that takes an upload and by no other
    from checks.captures.capture import open_capture
    from plumbline_web.validations.work.scratch import count_tensors

    refuse_deep(upload.content / MANIFEST)
    check_manifest(upload.content / MANIFEST)
    try:
        for file in _list_tensor_files(upload):
            _read_header(file)
        recorded = open_capture(upload.content)
        _check_recorded(recorded.manifest["files"], upload)
        steps = list(recorded.steps)
        for step in steps:
            recorded.all_tensors(step, "batch")  # reads every entry of the manifest against the headers
        tensors = count_tensors(upload.content / MANIFEST)
    except (CaptureError, KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ApiError(400, f"This is no capture that can be read: {_explain(error, upload)}", code="invalid") from None
    artefacts = [(file.name, store_file(upload.content / file.name)) for file in upload.files]
    with transaction.atomic():
        capture = Capture.objects.create(
            uploaded_by=by,
            digest=digest_files([(name, artefact.digest) for name, artefact in artefacts]),
            size=sum(artefact.size for _, artefact in artefacts),
            framework=_name_framework(recorded.packages),
            steps=steps,
            tensors=tensors,
            whole=not recorded.missing,
            recorded=to_plain(read_origin(recorded.manifest)),
        )
        CaptureFile.objects.bulk_create(
            CaptureFile(capture=capture, name=name, artefact=artefact) for name, artefact in artefacts
        )
    return capture


def _list_tensor_files(upload: Upload) -> Iterator[Path]:
    return (upload.content / file.name for file in upload.files if file.name != MANIFEST)


def _check_recorded(stated: Sequence[Mapping[str, object]], upload: Upload) -> None:
    """What was announced is the sender's copy; the manifest's digests are those of the recorder."""
    sent = {file.name: file.sha256 for file in upload.files}
    for entry in stated:
        name = str(entry["path"])
        if entry.get("sha256") and entry["sha256"] != sent.get(name):
            found = "is not what was recorded (its sha256 differs from the manifest's)"
            raise CaptureError(name, found, "copy the capture again")


def _read_header(file: Path) -> None:
    """As checks.captures.files.read_header, which takes a shape's extents for finite numbers."""
    from checks.captures.files import REMEDY, read_header  # loads torch

    try:
        read_header(file)
    except ArithmeticError as error:
        raise CaptureError(file.name, "has a header whose shape is no list of whole numbers", REMEDY) from error


def _explain(error: Exception, upload: Upload) -> str:
    """The sentence without this server's directories, and without what the interpreter says of a wrong value."""
    cause = error.__cause__
    quotes_cause = cause is not None and not isinstance(cause, OSError) and str(cause) in str(error)
    if isinstance(error, CaptureError) and not quotes_cause:
        return str(error).replace(f"{upload.content}/", "").replace(str(upload.content), "the capture")
    missing = cause if isinstance(error, CaptureError) else error
    if isinstance(missing, KeyError):
        return f"{MANIFEST} lacks the field {str(missing.args[0])[:60]!r}; record it again."
    return f"{MANIFEST} does not have the fields of the capture format; record it again."


def _name_framework(packages: Mapping[str, object]) -> str:
    """The framework that recorded it, as far as its packages say: TRL stands on transformers."""
    return next((name for name in ("trl", "transformers") if name in packages), "")


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
