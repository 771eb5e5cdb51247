"""Routes of validations."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import Router, Status

from plumbline_web.accounts.enums import Role, Scope
from plumbline_web.api.access import access, caller
from plumbline_web.api.body import describe_body, read_key, read_object
from plumbline_web.api.cursor import DEFAULT_LIMIT, read_filter, take_page, turn
from plumbline_web.api.describe import describe_validation, find_validation, show_row
from plumbline_web.api.errors import ApiError, invalid
from plumbline_web.api.schemas import CancelIn, Error, SubmissionIn, ValidationDetail, ValidationPage
from plumbline_web.validations import domain
from plumbline_web.validations.filters import SORTS, ValidationFilter
from plumbline_web.validations.models import Validation
from plumbline_web.validations.results import result_document
from plumbline_web.validations.submission import read_submission

router = Router(tags=["validations"])

KEY_HEADER = {
    "in": "header",
    "name": "Idempotency-Key",
    "required": False,
    "schema": {"type": "string", "maxLength": 100},
    "description": "a repeated request with the same key and body gives the validation of the first",
}


@router.post(
    "",
    auth=access(Scope.SUBMIT, Role.SUBMITTER),
    response={
        201: ValidationDetail,
        200: ValidationDetail,
        400: Error,
        401: Error,
        403: Error,
        409: Error,
        413: Error,
        507: Error,
    },
    openapi_extra={**describe_body(SubmissionIn), "parameters": [KEY_HEADER]},
    summary="Submit a validation",
    operation_id="create_validation",
)
def create_validation(request: HttpRequest) -> Status[dict[str, Any]]:
    """201: queued; 200: the key was used before for the same body; 409: for another one, or the wish cannot be met."""
    values = read_object(request)
    key = read_key(request, values)
    keeps = values.pop("keep_refusal", False)
    if not isinstance(keeps, bool):
        raise invalid({"keep_refusal": "is neither true nor false; give one of them, or leave it out"})
    validation, created = domain.submit(
        read_submission(values), owner=caller(request), idempotency_key=key, keeps_refusal=keeps
    )
    return Status(201 if created else 200, describe_validation(find_validation(validation.number, request)))


@router.get(
    "",
    auth=access(Scope.READ),
    response={200: ValidationPage, 400: Error, 401: Error},
    summary="List validations",
    operation_id="list_validations",
    openapi_extra={
        "parameters": [
            {"in": "query", "name": name, "required": False, "schema": {"type": "string"}, "description": field.label}
            for name, field in ValidationFilter.base_filters.items()
        ]
    },
)
def list_validations(request: HttpRequest, cursor: str = "", limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """The filters, and the order, are those of the page; an unknown one is refused. `cursor`: of the page before."""
    given = read_filter(request.GET, known=tuple(ValidationFilter.base_filters))
    rows = Validation.objects.visible_to(caller(request)).with_names()
    found = ValidationFilter(given, queryset=rows)
    if not found.is_valid():
        raise invalid({name: " ".join(map(str, messages)) for name, messages in found.errors.items()})
    return turn(take_page(found.qs, keys=SORTS[found.sort_name][1], cursor=cursor, limit=limit), show_row)


@router.get(
    "/{number}",
    auth=access(Scope.READ),
    response={200: ValidationDetail, 401: Error, 404: Error},
    summary="Read a validation",
    operation_id="read_validation",
)
def read_validation(request: HttpRequest, number: str) -> dict[str, Any]:
    """`number`: V-12, or 12. Progress, plan and settings are in it."""
    return describe_validation(find_validation(number, request))


@router.get(
    "/{number}/result",
    auth=access(Scope.READ),
    response={200: dict[str, Any], 401: Error, 404: Error, 409: Error},
    summary="Read the whole result",
    operation_id="read_result",
)
def read_result(request: HttpRequest, number: str) -> HttpResponse:
    """The document that `plumbline validate --json` writes; 409 until the validation is done."""
    validation = find_validation(number, request)
    if not validation.verdict:
        found = f"{validation.number} is {validation.state} and has no verdict"
        raise ApiError(409, f"{found}{'; wait until it is done' if validation.is_open else ''}.", code="illegal_state")
    return JsonResponse(result_document(validation), json_dumps_params={"allow_nan": False, "ensure_ascii": False})


@router.post(
    "/{number}/cancel",
    auth=access(Scope.SUBMIT, Role.SUBMITTER),
    response={200: ValidationDetail, 401: Error, 403: Error, 404: Error, 409: Error},
    openapi_extra=describe_body(CancelIn, required=False),
    summary="Cancel a validation",
    operation_id="cancel_validation",
)
def cancel_validation(request: HttpRequest, number: str) -> dict[str, Any]:
    """Own ones; a triager cancels any. Cancelling what is cancelled changes nothing."""
    version = read_object(request, known=("version",)).get("version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise invalid({"version": "is not a whole number; take it from the validation"})
    domain.cancel(find_validation(number, request), by=caller(request), version=version)
    return describe_validation(find_validation(number, request))


@router.post(
    "/{number}/retry",
    auth=access(Scope.SUBMIT, Role.SUBMITTER),
    response={201: ValidationDetail, 400: Error, 401: Error, 403: Error, 404: Error, 409: Error},
    summary="Submit the same again",
    operation_id="retry_validation",
)
def retry_validation(request: HttpRequest, number: str) -> Status[dict[str, Any]]:
    """A new validation with fresh captures."""
    again = domain.retry(find_validation(number, request), by=caller(request))
    return Status(201, describe_validation(find_validation(again.number, request)))


@router.post(
    "/{number}/rejudge",
    auth=access(Scope.SUBMIT, Role.SUBMITTER),
    response={200: ValidationDetail, 401: Error, 403: Error, 404: Error, 409: Error},
    summary="Judge the stored captures again",
    operation_id="rejudge_validation",
)
def rejudge_validation(request: HttpRequest, number: str) -> dict[str, Any]:
    """With the checks as they are now; changes of verdict are recorded."""
    domain.rejudge(find_validation(number, request), by=caller(request))
    return describe_validation(find_validation(number, request))
