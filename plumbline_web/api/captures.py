"""Routes of captures: list, read, download a file or the whole."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import FileResponse, Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Router

from plumbline_web.accounts.enums import Scope
from plumbline_web.api.access import access
from plumbline_web.api.archive import measure_archive, stream_archive
from plumbline_web.api.cursor import DEFAULT_LIMIT, NEWEST, take_page, turn
from plumbline_web.api.schemas import CaptureDetail, CapturePage, Error
from plumbline_web.artefacts.store import open_artefact
from plumbline_web.validations.models import Capture, CaptureFile, ValidationRun

router = Router(tags=["captures"])

MOST_VALIDATIONS = 50
"""Numbers that one capture's document lists."""


@router.get(
    "",
    auth=access(Scope.READ),
    response={200: CapturePage, 400: Error, 401: Error},
    summary="List captures",
    operation_id="list_captures",
)
def list_captures(request: HttpRequest, cursor: str = "", limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """Recorded here and uploaded, newest first."""
    page = take_page(_with_names(), keys=NEWEST, cursor=cursor, limit=limit)
    numbers = _list_validations([capture.run_id for capture in page.rows])
    return turn(page, lambda capture: _show(capture, numbers))


@router.get(
    "/{int:capture}",
    auth=access(Scope.READ),
    response={200: CaptureDetail, 401: Error, 404: Error},
    summary="Read a capture",
    operation_id="read_capture",
)
def read_capture(request: HttpRequest, capture: int) -> dict[str, Any]:
    """With its files and their digests."""
    return describe_capture(capture)


@router.get(
    "/{int:capture}/files/{name}",
    auth=access(Scope.READ),
    response={200: bytes, 401: Error, 404: Error},
    summary="Download a file",
    operation_id="download_file",
)
def download_file(request: HttpRequest, capture: int, name: str) -> HttpResponseBase:
    """404, missing_artefact: the file is gone from the server's disk."""
    if "\0" in name:  # PostgreSQL knows no such text
        raise Http404
    file = get_object_or_404(CaptureFile.objects.select_related("artefact"), capture=capture, name=name)
    response = FileResponse(
        open_artefact(file.artefact), as_attachment=True, filename=file.name, content_type="application/octet-stream"
    )
    response.headers["ETag"] = f'"{file.artefact.digest}"'
    return response


@router.get(
    "/{int:capture}/archive",
    auth=access(Scope.READ),
    response={200: bytes, 401: Error, 404: Error},
    summary="Download the whole",
    operation_id="download_archive",
)
def download_archive(request: HttpRequest, capture: int) -> HttpResponseBase:
    """An uncompressed tar of one directory."""
    found = get_object_or_404(Capture, pk=capture)
    files = list(found.files.select_related("artefact").order_by("name"))
    for file in files:
        open_artefact(file.artefact).close()  # what is missing must be said before the first byte
    folder = f"capture-{found.pk}"
    response = StreamingHttpResponse(
        stream_archive(files, folder=folder, at=found.created_at),
        content_type="application/x-tar",
        headers={"Content-Disposition": f'attachment; filename="{folder}.tar"'},
    )
    response.headers["Content-Length"] = str(measure_archive(files, folder=folder, at=found.created_at))
    return response


def describe_capture(pk: int) -> dict[str, Any]:
    """A capture with its files. Raises Http404."""
    capture = get_object_or_404(_with_names(), pk=pk)
    files = capture.files.select_related("artefact").order_by("name")
    return _show(capture, _list_validations([capture.run_id])) | {
        "files": [{"name": file.name, "size": file.artefact.size, "sha256": file.artefact.digest} for file in files]
    }


def _with_names() -> QuerySet[Capture]:
    return Capture.objects.select_related("uploaded_by")


def _list_validations(runs: list[int | None]) -> dict[int, list[str]]:
    """run → numbers of the validations that have part in it, the latest first."""
    numbers: dict[int, list[str]] = {}
    links = ValidationRun.objects.filter(run__in=[run for run in runs if run is not None])
    for run, validation in links.order_by("-validation_id").values_list("run_id", "validation_id")[:5000]:
        numbers.setdefault(run, []).append(f"V-{validation}")
    return {run: found[:MOST_VALIDATIONS] for run, found in numbers.items()}


def _show(capture: Capture, numbers: dict[int, list[str]]) -> dict[str, Any]:
    return {
        "id": capture.pk,
        "digest": capture.digest,
        "size": capture.size,
        "framework": capture.framework,
        "steps": capture.steps,
        "tensors": capture.tensors,
        "created_at": capture.created_at,
        "uploaded_by": capture.uploaded_by.username if capture.uploaded_by else None,
        "validations": numbers.get(capture.run_id or 0, []),
    }
