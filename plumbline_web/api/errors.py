"""Every error of the API in one shape: `{"error": {"code", "message", "fields"}}`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import ninja.errors
from django.core.exceptions import PermissionDenied, RequestDataTooBig, TooManyFieldsSent
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from ninja import NinjaAPI

from plumbline_web.accounts.errors import Refused as AccountRefused
from plumbline_web.artefacts.store import MissingArtefact
from plumbline_web.storage import SENTENCE as STORAGE_FULL
from plumbline_web.storage import is_full
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.submission import InvalidSubmission

log = logging.getLogger(__name__)

STATUS_OF_CODE: Mapping[str, int] = {
    "invalid": 400,
    "forbidden": 403,
    "stale": 409,
    "illegal_state": 409,
    "key_reused": 409,
    "missing_artefact": 409,
}
"""Of what the domain refuses."""

CODE_OF_STATUS: Mapping[int, str] = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    429: "too_many",
    500: "internal",
    503: "unavailable",
    507: "storage_full",
}

DATABASE_AWAY = "The database does not answer, and nothing was changed; send it again in a moment."


class ApiError(Exception):
    """An answer that is no success; the text is one sentence: what was found, and what to do."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or CODE_OF_STATUS[status]
        self.fields = dict(fields or {})


def render_error(error: ApiError) -> HttpResponse:
    """The JSON answer."""
    body = {"error": {"code": error.code, "message": str(error), "fields": error.fields}}
    response = JsonResponse(body, status=error.status)
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="plumbline"'
    return response


def invalid(fields: Mapping[str, str]) -> ApiError:
    """400, naming every wrong field."""
    count = "One field is" if len(fields) == 1 else f"{len(fields)} fields are"
    return ApiError(400, f"{count} wrong: {', '.join(fields)}.", fields=fields)


def translate(error: Exception) -> ApiError:
    """What an exception means to the API's user; one that nobody foresaw is logged and says nothing of its inside."""
    if is_full(error):
        log.error("nothing can be written: %s", error)
        return ApiError(HTTPStatus.INSUFFICIENT_STORAGE, STORAGE_FULL)
    for kind, turn in _TRANSLATIONS:
        if isinstance(error, kind):
            return turn(error)
    log.error("the API broke", exc_info=error)
    return ApiError(
        500, "Plumbline broke on this request; report it with its time, at which the server's log says more."
    )


def install(api: NinjaAPI) -> None:
    """Let every exception of a route end in the one shape."""

    def answer(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
        return render_error(translate(error if isinstance(error, Exception) else error()))

    # Handlers are found by the exception's own class first: ninja's defaults would otherwise come before `Exception`.
    for kind in (Exception, Http404, ninja.errors.HttpError, ninja.errors.ValidationError):
        api.add_exception_handler(kind, answer)


def _from_domain(error: Any) -> ApiError:
    return ApiError(STATUS_OF_CODE[error.code], str(error), code=error.code)


def _from_accounts(error: Any) -> ApiError:
    fields = {error.field: str(error)} if error.field else {}
    return ApiError(STATUS_OF_CODE[error.code], str(error), code=error.code, fields=fields)


def _from_parameters(error: Any) -> ApiError:
    return invalid({str(each["loc"][-1]): f"{each['msg']}; see /api/docs" for each in error.errors})


def _from_http(error: Any) -> ApiError:
    message = {401: "No valid token and no session were sent; send Authorization: Bearer <token>."}
    return ApiError(error.status_code, message.get(error.status_code, str(error)))


_TRANSLATIONS: tuple[tuple[type[Exception], Callable[[Any], ApiError]], ...] = (
    (ApiError, lambda error: error),
    (InvalidSubmission, lambda error: invalid(error.errors)),
    (Refused, _from_domain),
    (AccountRefused, _from_accounts),
    (MissingArtefact, lambda error: ApiError(404, str(error), code="missing_artefact")),
    (ninja.errors.ValidationError, _from_parameters),
    (ninja.errors.HttpError, _from_http),
    (OperationalError, lambda error: ApiError(503, DATABASE_AWAY)),
    (InterfaceError, lambda error: ApiError(503, DATABASE_AWAY)),
    (Http404, lambda error: ApiError(404, "There is no such thing here; look at /api/docs for what there is.")),
    (PermissionDenied, lambda error: ApiError(403, str(error) or "Your role does not allow this.")),
    (RequestDataTooBig, lambda error: ApiError(413, "The body is too large; captures are uploaded in chunks.")),
    (TooManyFieldsSent, lambda error: ApiError(400, "There are too many fields; send a JSON object.")),
    (UnreadablePostError, lambda error: ApiError(400, "The body ended before its length; send it again.")),
)
