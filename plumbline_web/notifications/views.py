"""A person's notifications, and how they wish to hear of what."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.forms import refuse
from plumbline_web.notifications import mail
from plumbline_web.notifications.domain import mark_all_read, mark_read, set_preferences
from plumbline_web.notifications.forms import PreferenceForm
from plumbline_web.notifications.models import Notification
from plumbline_web.tables.pagination import read_page
from plumbline_web.tables.shortening import shorten


@require_GET
def notification_list(request: HttpRequest) -> HttpResponse:
    """The newest first; `unread=yes` leaves out what was read."""
    address = shorten(request, {"page": ("", "1")})
    if address is not None:
        return HttpResponseRedirect(address)
    rows = Notification.objects.filter(person=signed_in(request), in_app=True).order_by("-pk")
    unread = request.GET.get("unread") == "yes"
    page = read_page(rows.filter(read_at__isnull=True) if unread else rows, request.GET.get("page", ""), whole=False)
    until = max((row.pk for row in page.rows), default=0)
    return render(request, "notifications/list.html", {"page": page, "unread": unread, "until": until})


@require_GET
def notification_open(request: HttpRequest, pk: int) -> HttpResponse:
    """To the page that it is about; it counts as read then."""
    notification = get_object_or_404(Notification, pk=pk, person=signed_in(request))
    mark_read(notification)
    return HttpResponseRedirect(notification.address)


@require_POST
def notification_read(request: HttpRequest) -> HttpResponse:
    """All that the person was shown, and nothing that came since."""
    until = request.POST.get("until", "")
    count = mark_all_read(signed_in(request), until=int(until) if until.isdecimal() and len(until) < 19 else 0)
    messages.success(request, f"{count:,} marked as read.")
    return redirect("notification-list")


@require_http_methods(["GET", "HEAD", "POST"])
def notification_preferences(request: HttpRequest) -> HttpResponse:
    person = signed_in(request)
    form = PreferenceForm(request.POST if request.method == "POST" else None, person=person)
    if form.is_bound and form.is_valid():
        try:
            set_preferences(person, email=form.cleaned_data["email"], wishes=form.wishes())
        except Refused as error:
            refuse(form, error)
        else:
            messages.success(request, "Your wishes are kept.")
            return redirect("notification-preferences")
    return render(request, "notifications/preferences.html", {"form": form, "sends_mail": mail.is_on()})
