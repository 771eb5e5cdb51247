"""One decision for many findings: the set is resolved on the server, and its count shown before anything is done."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.triage.changes import MOST_AT_ONCE
from plumbline_web.triage.domain import assign, decide, join, split
from plumbline_web.triage.forms import BulkForm
from plumbline_web.triage.views.finding import query
from plumbline_web.triage.views.queue import narrow
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import Decision
from plumbline_web.validations.models import Finding
from plumbline_web.validations.models.findings import FindingQuerySet

SHOWN = 20
LONGEST_NUMBER = 18


@require_POST
@requires(Role.TRIAGER)
def decide_many(request: HttpRequest) -> HttpResponse:
    """First says how many and which; acts when that page is confirmed with a decision, on no row that came later."""
    chosen = resolve(request)
    confirmed = "confirmed" in request.POST
    form = BulkForm(request.POST if confirmed else None)
    keys = list(chosen.order_by("pk").values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
    if not confirmed or not form.is_valid():
        return _ask(request, chosen, keys, form, status=400 if confirmed else 200)
    if str(len(keys)) != request.POST.get("count"):
        form.add_error(None, f"Meanwhile the set has changed: {len(keys):,} match now. Look again, then confirm.")
        return _ask(request, chosen, keys, form, status=409)
    try:
        told = _act(form.cleaned_data, keys, by=signed_in(request))
    except Refused as error:
        form.add_error(None, f"Nothing was saved: {error}.")
        return _ask(request, chosen, keys, form, status=409)
    messages.success(request, told)
    return redirect(f"{reverse('finding-list')}{query(request)}")


@require_POST
@requires(Role.TRIAGER)
def regroup(request: HttpRequest) -> HttpResponse:
    """Split the chosen findings off their group, or join the groups of the chosen ones."""
    keys = list(resolve(request).values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
    verb = split if "split" in request.POST else join
    try:
        outcome = verb(keys, by=signed_in(request))
    except Refused as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, f"{outcome.action.text.capitalize()}." if outcome.action else "Nothing was changed.")
    return redirect(f"{reverse('finding-list')}{query(request)}")


def resolve(request: HttpRequest) -> FindingQuerySet:
    """The rows that were ticked; with `all`, every row of the filter that the list was drawn with, up to `newest`."""
    person = signed_in(request)
    if "all" in request.POST:
        found = narrow(request.GET, person)
        newest = request.POST.get("newest", "")
        is_bound = newest.isdecimal() and len(newest) <= LONGEST_NUMBER
        rows: FindingQuerySet = found.qs.filter(pk__lte=int(newest)) if is_bound else found.qs
        return rows
    numbers = [int(text) for text in request.POST.getlist("f") if text.isdecimal() and len(text) <= LONGEST_NUMBER]
    return Finding.objects.visible_to(person).with_names().filter(pk__in=numbers)


def _act(given: dict[str, Any], keys: list[int], *, by: User) -> str:
    """Do what the form says, and say what was done."""
    told = []
    if given["assignee"]:
        outcome = assign(keys, to=User.objects.get(username=given["assignee"]), by=by)
        told.append(f"{len(outcome.changed):,} assigned to {given['assignee']}")
    if given["decision"]:
        outcome = decide(
            keys,
            decision=Decision(given["decision"]),
            problem=given["problem"],
            reason=given["reason"].strip(),
            by=by,
        )
        told.append(f"{len(outcome.changed):,} {Decision(given['decision']).label}")
        reasons = [each.reason for each in outcome.skipped]
        if reasons:
            told.append(f"{len(reasons):,} left as they are: {'; '.join(reasons[:5])}")
    return f"{'; '.join(told)}."


def _ask(
    request: HttpRequest, chosen: FindingQuerySet, keys: list[int], form: BulkForm, *, status: int
) -> HttpResponse:
    ctx = {
        "form": form,
        "count": len(keys),
        "too_many": len(keys) > MOST_AT_ONCE,
        "most": MOST_AT_ONCE,
        "newest": keys[-1] if keys else 0,
        "keys": [] if "all" in request.POST else keys,
        "all": "all" in request.POST,
        "rows": chosen[:SHOWN],
        "more": max(0, len(keys) - SHOWN),
        "query": query(request),
    }
    return render(request, "triage/bulk.html", ctx, status=status)
