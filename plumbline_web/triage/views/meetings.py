"""Meetings: begun with an agenda, one item at a time, decisions as they are made, minutes at the end."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.triage.agenda import end_meeting, find_open_item, plan_agenda, start_meeting
from plumbline_web.triage.detail import read_detail
from plumbline_web.triage.forms import FindingForm
from plumbline_web.triage.minutes import write_minutes
from plumbline_web.triage.models import AgendaItem, Meeting
from plumbline_web.triage.saving import save
from plumbline_web.triage.undo import find_last
from plumbline_web.triage.views.finding import find, initial, read_version
from plumbline_web.validations.domain import Refused

MOST_LISTED = 50


@require_http_methods(["GET", "POST"])
def meeting_list(request: HttpRequest) -> HttpResponse:
    """Earlier meetings, and what the next one would talk about; by POST it begins."""
    person = signed_in(request)
    may = person.has_role(Role.TRIAGER)
    if request.method == "POST":
        try:
            return redirect("meeting-detail", pk=start_meeting(request.POST.get("title", ""), by=person).pk)
        except Refused as error:
            messages.error(request, f"No meeting was begun: {error}.")
            if error.code == "forbidden":
                return render(request, "403.html", {"exception": str(error)}, status=403)
    ctx = {
        "meetings": Meeting.objects.select_related("started_by")[:MOST_LISTED],
        "agenda": plan_agenda() if may else [],
        "may_triage": may,
    }
    return render(request, "triage/meetings.html", ctx)


@require_GET
def meeting_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One item of the agenda, `?item=` its position; else the first that is open, or the summary when none is."""
    meeting = get_object_or_404(Meeting.objects.select_related("started_by"), pk=pk)
    item = read_item(request, meeting)
    if item is None:
        ctx = {"meeting": meeting, "minutes": write_minutes(meeting), "items": read_items(meeting)}
        return render(request, "triage/minutes.html", ctx)
    finding = find(request, item.finding_id)
    # The agenda has one finding of each group: what is said of it is meant for all.
    return show_item(request, meeting, item, FindingForm(initial=initial(finding) | {"alike": True}))


@require_POST
@requires(Role.TRIAGER)
def meeting_save(request: HttpRequest, pk: int, position: int) -> HttpResponse:
    meeting = get_object_or_404(Meeting.objects.select_related("started_by"), pk=pk)
    item = get_object_or_404(meeting.items, position=position)
    finding = find(request, item.finding_id)
    form = FindingForm(request.POST)
    if not form.is_valid():
        return show_item(request, meeting, item, form, status=400)
    if meeting.ended_at is not None:
        form.add_error(None, f"Nothing was saved: {meeting.title} has ended; decide in the queue.")
        return show_item(request, meeting, item, form, status=409)
    version = read_version(request, finding)
    try:
        done = save(finding, form.cleaned_data, version=version, by=signed_in(request), meeting=meeting)
    except Refused as error:
        form.add_error(None, f"Nothing was saved: {error}.")
        return show_item(request, meeting, item, form, status=409)
    messages.success(request, f"{finding.number}: {'; '.join(done) or 'nothing was changed'}.")
    decided = form.cleaned_data["decision"] or form.cleaned_data["snooze"]
    return redirect(f"{reverse('meeting-detail', args=[pk])}?item={position + 1 if decided else position}")


@require_POST
@requires(Role.TRIAGER)
def meeting_end(request: HttpRequest, pk: int) -> HttpResponse:
    meeting = get_object_or_404(Meeting, pk=pk)
    end_meeting(meeting, by=signed_in(request))
    return redirect(f"{reverse('meeting-detail', args=[pk])}?item=end")


@require_GET
def meeting_minutes(request: HttpRequest, pk: int) -> HttpResponse:
    """The minutes as a file."""
    meeting = get_object_or_404(Meeting.objects.select_related("started_by"), pk=pk)
    response = HttpResponse(write_minutes(meeting), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="minutes-{meeting.started_at:%Y-%m-%d}-{meeting.pk}.md"'
    return response


def read_items(meeting: Meeting) -> list[AgendaItem]:
    return list(meeting.items.select_related("finding__result", "finding__validation__framework"))


def read_item(request: HttpRequest, meeting: Meeting) -> AgendaItem | None:
    asked = request.GET.get("item", "")
    if asked.isdecimal() and len(asked) < 6:
        return meeting.items.filter(position=int(asked)).first()
    return None if asked or meeting.ended_at else find_open_item(meeting)


def show_item(
    request: HttpRequest, meeting: Meeting, item: AgendaItem, form: FindingForm, *, status: int = 200
) -> HttpResponse:
    person = signed_in(request)
    finding = find(request, item.finding_id)
    ctx = {
        "meeting": meeting,
        "item": item,
        "items": read_items(meeting),
        "handled": set(meeting.actions.filter(changes__isnull=False).values_list("changes__finding", flat=True)),
        "finding": finding,
        "detail": read_detail(finding, person=person),
        "form": form,
        "may_triage": person.has_role(Role.TRIAGER) and meeting.ended_at is None,
        "last": find_last(person),
    }
    return render(request, "triage/meeting.html", ctx, status=status)
