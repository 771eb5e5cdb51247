"""The queue of findings, its exports, and undoing."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.tables.views import export_list, show_list
from plumbline_web.triage.filters import FindingFilter
from plumbline_web.triage.models import Action
from plumbline_web.triage.presentation import FindingRow, row
from plumbline_web.triage.undo import find_last, undo
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

BASIC = ("text", "standing", "framework", "check", "pattern", "assignee")


@require_GET
def finding_list(request: HttpRequest) -> HttpResponse:
    person = signed_in(request)
    found = narrow(request.GET, person)
    more = {"last": find_last(person), "may_triage": person.has_role(Role.TRIAGER), "standing": found.standing_name}
    return show_list(request, found, template="triage/list.html", basic=BASIC, more=more)


@require_GET
def finding_export(request: HttpRequest, form: str) -> HttpResponseBase:
    found = narrow(request.GET, signed_in(request))
    return export_list(found, form=form, name="findings", kind=FindingRow, row=row)


@require_POST
@requires(Role.TRIAGER)
def undo_action(request: HttpRequest) -> HttpResponse:
    """Undo one deed, or with none named the person's own last one."""
    person = signed_in(request)
    number = request.POST.get("action", "")
    is_named = number.isdecimal() and len(number) <= 18
    action = get_object_or_404(Action, pk=int(number)) if is_named else find_last(person)
    if action is None:
        messages.info(request, "There is nothing of yours to undo.")
        return redirect(back(request))
    try:
        outcome = undo(action, by=person)
    except Refused as error:
        messages.error(request, f"Nothing was undone: {error}.")
        return redirect(back(request))
    left = f"; left as it is: {'; '.join(each.reason for each in outcome.skipped[:3])}" if outcome.skipped else ""
    messages.success(request, f"Undone: {action.text}{left}.")
    return redirect(back(request))


def narrow(data: QueryDict | dict[str, Any], person: User) -> FindingFilter:
    return FindingFilter(data, queryset=Finding.objects.visible_to(person).with_names(), person=person)


def back(request: HttpRequest) -> str:
    """Where the form was drawn, where that is a page of this site."""
    address = request.POST.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(address, allowed_hosts=None) and address.startswith("/")
    return address if is_ours else "/triage/"
