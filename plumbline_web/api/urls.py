"""Addresses of the API, under /api/v1/, and of its reference page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, re_path
from django.views.decorators.csrf import csrf_exempt

from plumbline_web.accounts.enums import Scope
from plumbline_web.api.access import access
from plumbline_web.api.application import api
from plumbline_web.api.errors import ApiError, render_error
from plumbline_web.api.reference import reference

View = Callable[..., HttpResponseBase]


def _guard(view: View) -> View:
    """A route checks by itself who calls, and answers in JSON: no page to sign in, no plain text for a wrong method."""

    @csrf_exempt  # `access.py` checks it for sessions
    @login_not_required
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if response.status_code != 405:
            return response
        allowed = ", ".join(sorted(response.headers["Allow"].split(", ")))
        refusal = render_error(ApiError(405, f"{request.method} is not possible here; use {allowed}."))
        refusal.headers["Allow"] = allowed
        return refusal

    return guarded


@csrf_exempt
@login_not_required
def _not_found(request: HttpRequest) -> HttpResponse:
    return render_error(ApiError(404, "There is no such address in the API; /api/docs lists them."))


def _require_caller(view: View) -> View:
    """The document is no secret, but nothing of an installation answers to strangers."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            if any(check(request) for check in access(Scope.READ)):
                return view(request, *args, **kwargs)
        except ApiError as error:
            return render_error(error)
        return render_error(ApiError(401, "No valid token and no session were sent; sign in, or send a token."))

    return checked


def _guard_all() -> list[URLPattern]:
    patterns = []
    for pattern in api.urls[0]:
        assert isinstance(pattern, URLPattern)
        if pattern.name == "api-root":
            continue
        view = _require_caller(pattern.callback) if pattern.name == "openapi-json" else pattern.callback
        pattern.callback = _guard(view)
        patterns.append(pattern)
    return patterns


app_name = "api"
urlpatterns = [
    *_guard_all(),
    path("", _not_found, name="api-root"),  # where the OpenAPI document finds the addresses' beginning
    re_path(r"", _not_found, name="not-found"),
]
reference_urlpatterns = [path("api/docs", reference, name="api-docs")]
