"""The administrators' page of people."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.domain import Refused, activate, create_link, deactivate, invite, set_role
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.forms import InviteForm, RoleForm, refuse
from plumbline_web.accounts.models import User

MOST_SHOWN = 500


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires(Role.ADMINISTRATOR)
def user_list(request: HttpRequest) -> HttpResponse:
    """Everyone; POST invites, and shows the link in the answer itself: it is stored nowhere."""
    form = InviteForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        values = form.cleaned_data
        try:
            user, secret = invite(values["username"], role=Role(values["role"]), by=signed_in(request))
        except Refused as error:
            refuse(form, error)
        else:
            return _render_users(request, linked=user, secret=secret)
    return _render_users(request, form=form)


@never_cache
@require_POST
@requires(Role.ADMINISTRATOR)
def user_link(request: HttpRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(User, pk=pk)
    try:
        secret = create_link(user, by=signed_in(request))
    except Refused as error:
        messages.error(request, str(error))
        return redirect("user-list")
    return _render_users(request, linked=user, secret=secret)


@require_POST
@requires(Role.ADMINISTRATOR)
def user_role(request: HttpRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(User, pk=pk)
    form = RoleForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"There is no such role; choose among {', '.join(Role.values)}.")
        return redirect("user-list")
    try:
        set_role(user, role=Role(form.cleaned_data["role"]), by=signed_in(request))
        messages.success(request, f"{user.username} is {user.role} now.")
    except Refused as error:
        messages.error(request, str(error))
    return redirect("user-list")


@require_POST
@requires(Role.ADMINISTRATOR)
def user_deactivate(request: HttpRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(User, pk=pk)
    try:
        deactivate(user, by=signed_in(request))
        messages.success(request, f"{user.username} is deactivated; their tokens and links have ended.")
    except Refused as error:
        messages.error(request, str(error))
    return redirect("user-list")


@require_POST
@requires(Role.ADMINISTRATOR)
def user_activate(request: HttpRequest, pk: int) -> HttpResponse:
    user = get_object_or_404(User, pk=pk)
    activate(user, by=signed_in(request))
    messages.success(request, f"{user.username} is active again; make a sign-in link if the password is lost.")
    return redirect("user-list")


def _render_users(
    request: HttpRequest, *, form: InviteForm | None = None, linked: User | None = None, secret: str = ""
) -> HttpResponse:
    link = request.build_absolute_uri(reverse("sign-in-link", args=[secret])) if secret else ""
    ctx = {
        "form": form or InviteForm(),
        "users": User.objects.order_by("-is_active", "username")[:MOST_SHOWN],
        "count": User.objects.count(),
        "roles": Role.choices,
        "linked": linked,
        "link": link,
    }
    return render(request, "accounts/users.html", ctx)
