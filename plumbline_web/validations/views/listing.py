"""The list of validations, and its exports."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.tables.views import export_list, show_list
from plumbline_web.validations.filters import ValidationFilter
from plumbline_web.validations.models import Validation
from plumbline_web.validations.overview import UNSEEN
from plumbline_web.validations.presentation import Row, row

BASIC = ("text", "framework", "model", "verdict", "state", "who")
"""Facets that are always in view; the others open on demand."""


@require_GET
def validation_list(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    found = ValidationFilter(request.GET, queryset=Validation.objects.visible_to(user).with_names().defer(*UNSEEN))
    more = {"may_submit": user.has_role(Role.SUBMITTER)}
    return show_list(request, found, template="validations/list.html", basic=BASIC, more=more)


@require_GET
def validation_export(request: HttpRequest, form: str) -> HttpResponseBase:
    rows = Validation.objects.visible_to(signed_in(request)).with_names()
    found = ValidationFilter(request.GET, queryset=rows)
    return export_list(found, form=form, name="validations", kind=Row, row=row)
