"""One finding: its page, what is said of it, and its place on a pinboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.problems.models import Problem
from plumbline_web.triage import domain
from plumbline_web.triage.detail import read_detail
from plumbline_web.triage.forms import FindingForm, WaiverForm
from plumbline_web.triage.models import Waiver
from plumbline_web.triage.saving import save
from plumbline_web.triage.undo import find_last
from plumbline_web.triage.views.queue import back, narrow
from plumbline_web.triage.waivers import end_waiver, waive
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Finding

SHOWN = 60
"""Findings of the queue beside the one that is looked at."""


@dataclass(frozen=True)
class Place:
    """A finding's place in the queue that it was opened from: its neighbours, none where it is not in it."""

    rows: tuple[Finding, ...]
    before: Finding | None
    after: Finding | None


@require_GET
def finding_detail(request: HttpRequest, pk: int) -> HttpResponse:
    finding = find(request, pk)
    return show(request, finding, FindingForm(initial=initial(finding)))


@require_POST
@requires(Role.TRIAGER)
def finding_save(request: HttpRequest, pk: int) -> HttpResponse:
    """Everything that the form says, or nothing: what was typed stays in the form then."""
    finding = find(request, pk)
    form = FindingForm(request.POST)
    place = read_place(request, finding)
    if not form.is_valid():
        return show(request, finding, form, status=400)
    try:
        done = save(finding, form.cleaned_data, version=read_version(request, finding), by=signed_in(request))
    except Refused as error:
        form.add_error(None, f"Nothing was saved: {error}.")
        return show(request, find(request, pk), form, status=403 if error.code == "forbidden" else 409)
    if not done:
        messages.info(request, f"{finding.number}: nothing was changed.")
        return redirect(f"{reverse('finding-detail', args=[pk])}{query(request)}")
    messages.success(request, f"{finding.number}: {'; '.join(done)}.")
    goes_on = place.after if form.cleaned_data["decision"] or form.cleaned_data["snooze"] else finding
    if goes_on is None:
        return redirect(f"{reverse('finding-list')}{query(request)}")
    return redirect(f"{reverse('finding-detail', args=[goes_on.pk])}{query(request)}")


@require_POST
def finding_pin(request: HttpRequest, pk: int) -> HttpResponse:
    """Pin, or with `off` take off."""
    finding = find(request, pk)
    if "off" in request.POST:
        domain.unpin([finding.pk], by=signed_in(request))
    else:
        domain.pin(finding, by=signed_in(request))
    return redirect(back(request))


@require_POST
@requires(Role.TRIAGER)
def finding_reject(request: HttpRequest, pk: int, problem: int) -> HttpResponse:
    """A suggestion is turned down, and not made again."""
    finding, wrong = find(request, pk), get_object_or_404(Problem.objects.defer("search"), pk=problem)
    try:
        domain.reject(finding, problem=wrong, by=signed_in(request))
        messages.success(request, f"{finding.number} is not {wrong.number}; it is not suggested again.")
    except Refused as error:
        messages.error(request, f"{error}.")
    return redirect(back(request))


@require_POST
@requires(Role.TRIAGER)
def finding_waive(request: HttpRequest, pk: int) -> HttpResponse:
    finding = find(request, pk)
    form = WaiverForm(request.POST)
    if not form.is_valid():
        return show(request, finding, FindingForm(initial=initial(finding)), waiver_form=form, status=400)
    try:
        waiver = waive(finding, by=signed_in(request), **form.cleaned_data)
    except Refused as error:
        form.add_error(None, f"{error}.")
        return show(request, finding, FindingForm(initial=initial(finding)), waiver_form=form, status=409)
    messages.success(request, f"Waived until {waiver.until} as {waiver.problem.number}.")
    return redirect(f"{reverse('finding-detail', args=[pk])}{query(request)}")


@require_POST
@requires(Role.TRIAGER)
def waiver_end(request: HttpRequest, pk: int) -> HttpResponse:
    end_waiver(get_object_or_404(Waiver.objects.select_related("problem"), pk=pk), by=signed_in(request))
    messages.success(request, "The waiver has ended; what it covered is in the queue again.")
    return redirect(back(request))


def find(request: HttpRequest, pk: int) -> Finding:
    found: Finding = get_object_or_404(
        Finding.objects.visible_to(signed_in(request)).select_related(
            *("validation__framework", "validation__environment__framework", "validation__model"),
            *("result__environment__framework", "result__validation", "assignee", "decided_by", "evidence", "repeats"),
        ),
        pk=pk,
    )
    return found


def initial(finding: Finding) -> dict[str, Any]:
    """What the form shows of a finding; a decision that was made is not offered for saving again."""
    return {"assignee": finding.assignee.username if finding.assignee else "", "due": finding.due}


def read_version(request: HttpRequest, finding: Finding) -> int:
    given = request.POST.get("version", "")
    return int(given) if given.isdecimal() and len(given) < 10 else finding.version


def read_place(request: HttpRequest, finding: Finding) -> Place:
    rows = tuple(narrow(request.GET, signed_in(request)).qs[:SHOWN])
    at = next((number for number, row in enumerate(rows) if row.pk == finding.pk), None)
    if at is None:
        return Place(rows, None, rows[0] if rows else None)
    return Place(rows, rows[at - 1] if at else None, rows[at + 1] if at + 1 < len(rows) else None)


def query(request: HttpRequest) -> str:
    """The queue's filter as the address has it."""
    encoded = request.GET.urlencode()
    return f"?{encoded}" if encoded else ""


def show(
    request: HttpRequest,
    finding: Finding,
    form: FindingForm,
    *,
    waiver_form: WaiverForm | None = None,
    status: int = 200,
) -> HttpResponse:
    person = signed_in(request)
    ctx = {
        "finding": finding,
        "detail": read_detail(finding, person=person),
        "form": form,
        "waiver_form": waiver_form or WaiverForm(),
        "place": read_place(request, finding),
        "may_triage": person.has_role(Role.TRIAGER),
        "last": find_last(person),
        "query": query(request),
    }
    return render(request, "triage/finding.html", ctx, status=status)
