"""Routes of findings: what waits for a person, and what a person says of it."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Router

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.api.access import access, caller
from plumbline_web.api.body import describe_body, read_object
from plumbline_web.api.cursor import DEFAULT_LIMIT, read_filter, take_page, turn
from plumbline_web.api.errors import ApiError, invalid
from plumbline_web.api.finding_schemas import DecisionIn, Deed, FindingDetail, FindingPage
from plumbline_web.api.schemas import Error
from plumbline_web.triage.changes import Outcome
from plumbline_web.triage.domain import decide
from plumbline_web.triage.filters import SORTS, FindingFilter
from plumbline_web.triage.forms import DecisionForm
from plumbline_web.triage.models import Action
from plumbline_web.triage.presentation import row
from plumbline_web.triage.suggesting import suggest_problems
from plumbline_web.triage.undo import undo
from plumbline_web.validations.enums import Decision
from plumbline_web.validations.models import Finding

router = Router(tags=["findings"])

NUMBER = re.compile(r"(?:F-)?([1-9]\d{0,17})", re.IGNORECASE | re.ASCII)
FIELDS = ("decision", "problem", "reason", "row_version")


@router.get(
    "/findings",
    auth=access(Scope.READ),
    response={200: FindingPage, 400: Error, 401: Error},
    summary="List findings",
    operation_id="list_findings",
    openapi_extra={
        "parameters": [
            {"in": "query", "name": name, "required": False, "schema": {"type": "string"}, "description": field.label}
            for name, field in FindingFilter.base_filters.items()
        ]
    },
)
def list_findings(request: HttpRequest, cursor: str = "", limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """The filters, and the order, are those of the page: where no standing is given, what needs a person now."""
    person = caller(request)
    given = read_filter(request.GET, known=tuple(FindingFilter.base_filters))
    found = FindingFilter(given, queryset=Finding.objects.visible_to(person).with_names(), person=person)
    if not found.is_valid():
        raise invalid({name: " ".join(map(str, messages)) for name, messages in found.errors.items()})
    page = take_page(found.qs, keys=SORTS[found.sort_name][1], cursor=cursor, limit=limit)
    return turn(page, lambda finding: asdict(row(finding)))


@router.get(
    "/findings/{number}",
    auth=access(Scope.READ),
    response={200: FindingDetail, 401: Error, 404: Error},
    summary="Read a finding",
    operation_id="read_finding",
)
def read_finding(request: HttpRequest, number: str) -> dict[str, Any]:
    """`number`: F-12, or 12. With the problems that it may be, each with its reasons."""
    finding = _find(request, number)
    said = finding.occurrences.filter(stands=True, holds=True).order_by("pk")
    return asdict(row(finding)) | {
        "problems": [f"P-{problem}" for problem in said.values_list("problem", flat=True)],
        "suggestions": [
            {"problem": each.problem.number, "title": each.problem.title, "basis": each.basis, "reasons": each.reasons}
            for each in suggest_problems(finding)
        ],
        "comments": [
            {"author": each.author.username, "at": each.at, "text": each.text}
            for each in finding.comments.select_related("author")
        ],
        "row_version": finding.version,
    }


@router.post(
    "/findings/{number}/decision",
    auth=access(Scope.TRIAGE, Role.TRIAGER),
    response={200: Deed, 400: Error, 401: Error, 403: Error, 404: Error, 409: Error},
    openapi_extra=describe_body(DecisionIn),
    summary="Decide about a finding",
    operation_id="decide_finding",
)
def decide_finding(request: HttpRequest, number: str) -> dict[str, Any]:
    """409 where somebody else decided since `row_version`, with what was decided."""
    finding = _find(request, number)
    values = read_object(request, known=FIELDS)
    version = values.get("row_version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise invalid({"row_version": "is not a whole number; take it from the finding"})
    form = DecisionForm({name: value for name, value in values.items() if isinstance(value, str)})
    if not form.is_valid() or not form.cleaned_data["decision"]:
        errors = {name: " ".join(map(str, messages)) for name, messages in form.errors.items()}
        raise invalid(errors or {"decision": f"is missing; give one of {', '.join(Decision.values)}"})
    outcome = decide(
        [finding.pk],
        decision=Decision(form.cleaned_data["decision"]),
        problem=form.cleaned_data["problem"],
        reason=form.cleaned_data["reason"].strip(),
        versions=None if version is None else {finding.pk: version},
        by=caller(request),
    )
    if outcome.skipped and version is not None and version != finding.version:
        raise ApiError(409, f"{outcome.skipped[0].reason}.", code="stale")
    return _tell(outcome)


@router.post(
    "/actions/{action}/undo",
    auth=access(Scope.TRIAGE, Role.TRIAGER),
    response={200: Deed, 401: Error, 403: Error, 404: Error, 409: Error},
    summary="Undo a deed",
    operation_id="undo_action",
)
def undo_action(request: HttpRequest, action: int) -> dict[str, Any]:
    """What somebody changed since is left as it is, and told."""
    return _tell(undo(get_object_or_404(Action, pk=action), by=caller(request)))


def _find(request: HttpRequest, number: str) -> Finding:
    found = NUMBER.fullmatch(number)
    rows = Finding.objects.visible_to(caller(request)).select_related(
        *("validation__framework", "validation__environment__framework", "validation__model"),
        *("result", "assignee", "decided_by"),
    )
    finding: Finding | None = rows.filter(pk=int(found[1])).first() if found else None
    if finding is None:
        raise Http404(f"There is no finding {number[:60]!r}.")
    return finding


def _tell(outcome: Outcome) -> dict[str, Any]:
    return {
        "action": outcome.action.pk if outcome.action is not None else None,
        "changed": [finding.number for finding in outcome.changed],
        "skipped": [each.reason for each in outcome.skipped],
    }
