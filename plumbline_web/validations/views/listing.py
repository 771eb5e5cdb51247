"""The list of validations, and its exports."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.tables.exports import CHUNK_ROWS, FORMS, stream
from plumbline_web.tables.pagination import read_page
from plumbline_web.tables.shortening import shorten
from plumbline_web.validations.filters import DEFAULT_SORT, ValidationFilter
from plumbline_web.validations.models import Validation
from plumbline_web.validations.overview import UNSEEN
from plumbline_web.validations.presentation import COLUMNS, row

DEFAULTS: Mapping[str, tuple[str, ...]] = {"sort": ("", DEFAULT_SORT), "page": ("", "1")}
"""Parameters whose value says nothing; of every other one the empty text."""

BASIC = ("text", "framework", "model", "verdict", "state", "who")
"""Facets that are always in view; the others open on demand."""


@require_GET
def validation_list(request: HttpRequest) -> HttpResponse:
    address = shorten(request, DEFAULTS)
    if address is not None:
        return HttpResponseRedirect(address)
    user = signed_in(request)
    found = ValidationFilter(request.GET, queryset=Validation.objects.visible_to(user).with_names().defer(*UNSEEN))
    active = found.active()
    ctx = {
        "filter": found,
        "basic": [found.form[name] for name in BASIC],
        "further": [found.form[name] for name in found.form.fields if name not in BASIC],
        "is_further_open": any(name not in BASIC for name in (*active, *found.errors)),
        "active": active,
        "page": read_page(found.qs, request.GET.get("page", ""), whole=not active),
        "sort": found.sort_name,
        "may_submit": user.has_role(Role.SUBMITTER),
    }
    return render(request, "validations/list.html", ctx, status=200 if found.is_valid() else 400)


@require_GET
def validation_export(request: HttpRequest, form: str) -> HttpResponseBase:
    """The whole filtered set; a filter that is wrong gives 400 and no row."""
    if form not in FORMS:
        raise Http404(f"There is no export as {form[:20]}; use csv or json.")
    found = ValidationFilter(request.GET, queryset=Validation.objects.visible_to(signed_in(request)))
    if not found.is_valid():
        sentences = [f"{name}: {'; '.join(errors)}" for name, errors in found.errors.items()]
        return HttpResponse("\n".join(sentences) + "\n", status=400, content_type="text/plain; charset=utf-8")
    rows = (row(validation) for validation in found.qs.with_names().iterator(chunk_size=CHUNK_ROWS))
    response = StreamingHttpResponse(stream(rows, COLUMNS, form), content_type=FORMS[form])
    response["Content-Disposition"] = f'attachment; filename="validations.{form}"'
    return response
