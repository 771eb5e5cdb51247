"""Routes of the catalogue of problems."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router

from checks.matching.subjects import catching_checks
from plumbline_web.accounts.enums import Scope
from plumbline_web.api.access import access, caller
from plumbline_web.api.cursor import DEFAULT_LIMIT, read_filter, take_page, turn
from plumbline_web.api.errors import invalid
from plumbline_web.api.schemas import Error, ProblemDetail, ProblemPage
from plumbline_web.problems.filters import SORTS, ProblemFilter
from plumbline_web.problems.models import Problem
from plumbline_web.problems.presentation import READ, row

router = Router(tags=["problems"])

NUMBER = re.compile(r"(?:P-)?([1-9]\d{0,17})", re.IGNORECASE | re.ASCII)

FURTHER = (
    *("symptom", "root_cause", "fix", "related_urls", "cpu_reproducible", "shows_in_release", "confidence"),
    *("affected_spec", "version"),
)
"""Columns that a list leaves out."""


@router.get(
    "",
    auth=access(Scope.READ),
    response={200: ProblemPage, 400: Error, 401: Error},
    summary="List problems",
    operation_id="list_problems",
    openapi_extra={
        "parameters": [
            {"in": "query", "name": name, "required": False, "schema": {"type": "string"}, "description": field.label}
            for name, field in ProblemFilter.base_filters.items()
        ]
    },
)
def list_problems(request: HttpRequest, cursor: str = "", limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """The filters, and the order, are those of the page; an unknown one is refused. `cursor`: of the page before."""
    rows = Problem.objects.visible_to(caller(request)).only(*READ)
    found = ProblemFilter(read_filter(request.GET, known=tuple(ProblemFilter.base_filters)), queryset=rows)
    if not found.is_valid():
        raise invalid({name: " ".join(map(str, messages)) for name, messages in found.errors.items()})
    page = take_page(found.qs, keys=SORTS[found.sort_name][1], cursor=cursor, limit=limit)
    return turn(page, lambda problem: asdict(row(problem)))


@router.get(
    "/{number}",
    auth=access(Scope.READ),
    response={200: ProblemDetail, 401: Error, 404: Error},
    summary="Read a problem",
    operation_id="read_problem",
)
def read_problem(request: HttpRequest, number: str) -> dict[str, Any]:
    """`number`: P-45, 45, or the slug."""
    found = NUMBER.fullmatch(number)
    named = {"pk": int(found[1])} if found else {"slug": number}
    problem = Problem.objects.visible_to(caller(request)).defer("search").filter(**named).first()
    if problem is None:
        raise Http404(f"There is no problem {number[:60]!r}.")
    further = {name: getattr(problem, name) for name in FURTHER}
    groups = list(problem.recurrences.values_list("name", flat=True))
    checks = list(catching_checks().get(problem.slug, ()))
    return asdict(row(problem)) | further | {"recurrences": groups, "checks": checks}
