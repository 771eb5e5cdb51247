"""Routes of uploads: announce, send chunks, complete. An upload that broke off goes on where it stopped."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, BinaryIO, cast

from django.http import Http404, HttpRequest
from ninja import Router, Status

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.api.access import access, caller
from plumbline_web.api.body import describe_body, read_object
from plumbline_web.api.captures import describe_capture
from plumbline_web.api.errors import ApiError, invalid
from plumbline_web.api.intake import find_whole, make_capture, read_announcement
from plumbline_web.api.schemas import CaptureDetail, Error, UploadIn
from plumbline_web.api.schemas import Upload as UploadOut
from plumbline_web.api.upload_store import (
    CHUNK_BYTES,
    MOST_OPEN,
    TooLong,
    Upload,
    WrongDigest,
    WrongOffset,
    announcing,
    append_chunk,
    count_open,
    discard,
    find_same,
    find_upload,
    note_capture,
    open_upload,
    read_checked,
    sweep,
)

router = Router(tags=["captures"])

UPLOAD = access(Scope.UPLOAD, Role.SUBMITTER)

DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):", re.ASCII)
"""`Content-Digest` of RFC 9530 with the one algorithm that is read here."""


@router.post(
    "/uploads",
    auth=UPLOAD,
    response={
        201: UploadOut,
        200: UploadOut,
        400: Error,
        401: Error,
        403: Error,
        409: Error,
        413: Error,
        507: Error,
    },
    openapi_extra=describe_body(UploadIn),
    summary="Announce an upload",
    operation_id="create_upload",
)
def create_upload(request: HttpRequest) -> Status[dict[str, Any]]:
    """Names, sizes and SHA-256 of a capture's files: manifest.json and .safetensors, nothing else.

    With `resume`: 200 with the caller's own upload of the very same files, under way or complete, where there is one.
    """
    given = read_object(request, known=("files", "resume"))
    files = read_announcement(given.get("files"))
    resume = given.get("resume", False)
    if not isinstance(resume, bool):
        raise invalid({"resume": "is neither true nor false; use true or false"})
    owner = caller(request).pk
    sweep()
    with announcing(owner):
        same = find_same(files, owner=owner) if resume else None
        if same is not None:
            return Status(200, _show(same))
        whole = find_whole(files, by=caller(request)) if resume else None
        if whole is None and count_open(owner) >= MOST_OPEN:
            found = f"You have {MOST_OPEN} uploads under way; complete or discard one."
            raise ApiError(409, found, code="illegal_state")
        upload = open_upload(files, owner=owner)
        if whole is not None:
            return Status(200, _show(note_capture(upload, whole.pk)))
    return Status(201, _show(upload))


@router.get(
    "/uploads/{upload}",
    auth=UPLOAD,
    response={200: UploadOut, 401: Error, 403: Error, 404: Error},
    summary="How far an upload is",
    operation_id="read_upload",
)
def read_upload(request: HttpRequest, upload: str) -> dict[str, Any]:
    """`received` of each file is the offset of its next chunk."""
    return _show(_find(upload, request))


@router.put(
    "/uploads/{upload}/files/{int:number}",
    auth=UPLOAD,
    response={200: UploadOut, 400: Error, 401: Error, 403: Error, 404: Error, 409: Error, 413: Error, 507: Error},
    openapi_extra={
        "parameters": [
            {
                "in": "header",
                "name": "Content-Digest",
                "required": False,
                "schema": {"type": "string"},
                "description": "sha-256=:<base64>: (RFC 9530); the chunk is kept only where it agrees",
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
    summary="Send a chunk",
    operation_id="send_chunk",
)
def send_chunk(request: HttpRequest, upload: str, number: int, offset: int) -> dict[str, Any]:
    """The body is the bytes from `offset` on. 409: `fields.offset` says where the next chunk begins."""
    found = _find(upload, request)
    if number >= len(found.files):
        raise Http404
    if found.capture is not None:
        raise ApiError(409, "This upload is complete; announce another one.", code="illegal_state")
    source, length, sha256 = cast(BinaryIO, request), _read_length(request), _read_digest(request)
    try:
        if sha256 is not None:
            source = read_checked(source, length=length, sha256=sha256)
        append_chunk(found, number, source, offset=offset, length=length)
    except WrongOffset as error:
        raise ApiError(409, str(error), code="wrong_offset", fields={"offset": str(error.received)}) from None
    except WrongDigest as error:
        raise ApiError(409, str(error), code="wrong_digest") from None
    except FileNotFoundError:  # discarded, or completed by another request, since it was found
        raise Http404 from None
    except TooLong as error:
        raise ApiError(413, str(error)) from None
    return _show(found)


@router.post(
    "/uploads/{upload}/complete",
    auth=UPLOAD,
    response={
        201: CaptureDetail,
        200: CaptureDetail,
        400: Error,
        401: Error,
        403: Error,
        404: Error,
        409: Error,
        507: Error,
    },
    summary="Make it a capture",
    operation_id="complete_upload",
)
def complete_upload(request: HttpRequest, upload: str) -> Status[dict[str, Any]]:
    """Checks digests, headers and manifest. 201: made; 200: it had been made by an earlier call."""
    capture, made = make_capture(_find(upload, request), by=caller(request))
    return Status(201 if made else 200, describe_capture(capture.pk))


@router.delete(
    "/uploads/{upload}",
    auth=UPLOAD,
    response={204: None, 401: Error, 403: Error, 404: Error},
    summary="Discard an upload",
    operation_id="discard_upload",
)
def discard_upload(request: HttpRequest, upload: str) -> Status[None]:
    """What has come in goes; a capture that it became stays."""
    discard(_find(upload, request))
    return Status(204, None)


def _find(upload: str, request: HttpRequest) -> Upload:
    found = find_upload(upload, owner=caller(request).pk)
    if found is None:
        raise Http404
    return found


def _read_length(request: HttpRequest) -> int:
    text = request.headers.get("Content-Length", "")
    if not text.isascii() or not text.isdigit():
        raise invalid({"Content-Length": "is missing; send each chunk with its length"})
    return int(text)


def _read_digest(request: HttpRequest) -> bytes | None:
    """The chunk's SHA-256 where its sender gives one."""
    text = request.headers.get("Content-Digest")
    if text is None:
        return None
    found = DIGEST.fullmatch(text.strip())
    if found is None:
        raise invalid({"Content-Digest": "is not sha-256=:<44 characters of base64>:, as RFC 9530 writes it"})
    try:
        return base64.b64decode(found[1], validate=True)
    except binascii.Error:
        raise invalid({"Content-Digest": "is no base64"}) from None


def _show(upload: Upload) -> dict[str, Any]:
    return {
        "id": upload.id,
        "chunk_bytes": CHUNK_BYTES,
        "files": [
            {
                "number": number,
                "name": file.name,
                "size": file.size,
                "sha256": file.sha256,
                "received": upload.received(number),
            }
            for number, file in enumerate(upload.files)
        ],
        "capture": upload.capture,
    }
