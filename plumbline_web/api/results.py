"""Routes of check results and of logs."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Query, Router

from checks.registry import CHECKS
from plumbline_web.accounts.enums import Scope
from plumbline_web.api.access import access, caller
from plumbline_web.api.cursor import take_page, turn
from plumbline_web.api.describe import parse_number, show_result
from plumbline_web.api.errors import invalid
from plumbline_web.api.schemas import Error, ResultPage, ResultQuery
from plumbline_web.artefacts.store import open_artefact
from plumbline_web.jobs.models import Job
from plumbline_web.validations.enums import Pattern, Status
from plumbline_web.validations.models import CheckResult, Validation

router = Router(tags=["results"])

CHOICES = {"check": tuple(CHECKS), "status": tuple(Status.values), "pattern": tuple(Pattern.values)}


@router.get(
    "/results",
    auth=access(Scope.READ),
    response={200: ResultPage, 400: Error, 401: Error},
    summary="List verdicts of checks",
    operation_id="list_results",
)
def list_results(request: HttpRequest, query: Query[ResultQuery]) -> dict[str, Any]:
    """The current verdicts, newest first; those that a re-judgement replaced are left out."""
    _refuse_unknown(request)
    rows = CheckResult.objects.filter(
        superseded_at__isnull=True, validation__in=Validation.objects.visible_to(caller(request))
    ).select_related("framework", "environment", "model", "validation")
    return turn(take_page(_narrow(rows, query), keys=("-id",), cursor=query.cursor, limit=query.limit), show_result)


@router.get(
    "/jobs/{int:job}/log",
    auth=access(Scope.READ),
    response={200: str, 401: Error, 404: Error},
    summary="Read a job's log",
    operation_id="read_log",
)
def read_log(request: HttpRequest, job: int) -> HttpResponseBase:
    """The whole output as text; of a job that still runs, what there is so far."""
    found = get_object_or_404(Job.objects.select_related("log"), pk=job)
    kind = "text/plain; charset=utf-8"
    if found.log is not None:
        return FileResponse(open_artefact(found.log), content_type=kind)
    lines = found.lines.filter(token=found.token).order_by("number").values_list("text", flat=True)
    return StreamingHttpResponse((f"{line}\n" for line in lines.iterator()), content_type=kind)


def _narrow(rows: QuerySet[CheckResult], query: ResultQuery) -> QuerySet[CheckResult]:
    errors = {
        name: f"{getattr(query, name)[:60]!r} is none of its values; use {' or '.join(choices)}"
        for name, choices in CHOICES.items()
        if getattr(query, name) not in ("", *choices)
    }
    number = parse_number(query.validation) if query.validation else None
    if query.validation and number is None:
        errors["validation"] = f"{query.validation[:60]!r} is no validation's number; write V-12"
    if errors:
        raise invalid(errors)
    wanted = {
        "validation": number,
        "check_name": query.check,
        "status": query.status,
        "pattern": query.pattern,
        "framework__name": query.framework,
        "model__name": query.model,
    }
    return rows.filter(**{column: value for column, value in wanted.items() if value})


def _refuse_unknown(request: HttpRequest) -> None:
    known = tuple(ResultQuery.model_fields)
    unknown = [name for name in request.GET if name not in known]
    if unknown:
        raise invalid({name[:60]: f"there is no such filter; they are {', '.join(known)}" for name in unknown[:20]})
