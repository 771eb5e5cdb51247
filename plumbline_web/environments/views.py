"""The administrators' page of environments."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused
from plumbline_web.accounts.forms import refuse
from plumbline_web.environments import domain
from plumbline_web.environments.forms import CreateForm, EvictForm
from plumbline_web.environments.models import Wish
from plumbline_web.environments.reading import list_half_built, list_unused, read_environments, read_wishes
from workers.environments.store import Store


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires(Role.ADMINISTRATOR)
def environment_list(request: HttpRequest) -> HttpResponse:
    """All of this machine; POST asks for a new one."""
    form = CreateForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        values = form.cleaned_data
        others = [line.strip() for line in values["others"].splitlines() if line.strip()]
        try:
            domain.create(
                values["framework"], others=others, name=values["name"], python=values["python"], by=signed_in(request)
            )
            return redirect("environment-list")
        except Refused as error:
            refuse(form, error)
    return _render(request, form)


@never_cache
@require_safe
@requires(Role.ADMINISTRATOR)
def environment_live(request: HttpRequest) -> HttpResponse:
    """The part that moves while something is under way."""
    return render(request, "environments/_wishes.html", {"wishes": read_wishes()})


@require_POST
@requires(Role.ADMINISTRATOR)
def environment_check(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, lambda: domain.check(name, by=signed_in(request)))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires(Role.ADMINISTRATOR)
def environment_remove(request: HttpRequest, name: str) -> HttpResponse:
    """Asks whether it is meant, and what goes with it; POST removes."""
    if request.method == "POST":
        return _act(request, lambda: domain.remove(name, by=signed_in(request)))
    row = next((row for row in read_environments(Store()) if row.name == name), None)
    if row is None:
        messages.error(request, f"There is no environment {name[:80]} any more.")
        return redirect("environment-list")
    return render(request, "environments/remove.html", {"row": row})


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires(Role.ADMINISTRATOR)
def environment_evict(request: HttpRequest) -> HttpResponse:
    """Says which environments no run has used for so long; POST removes them."""
    form = EvictForm(request.POST if request.method == "POST" else request.GET)
    if not form.is_valid():
        return _render(request, CreateForm(), evict=form)
    days = form.cleaned_data["days"]
    if request.method == "POST":
        return _act(request, lambda: domain.evict(days, by=signed_in(request)))
    store = Store()
    ctx = {"days": days, "unused": list_unused(store, days=days), "half": list_half_built(store)}
    return render(request, "environments/evict.html", ctx)


@require_POST
@requires(Role.ADMINISTRATOR)
def environment_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    wish = get_object_or_404(Wish, pk=pk)
    return _act(request, lambda: domain.cancel(wish, by=signed_in(request)))


def _act(request: HttpRequest, act: Callable[[], object]) -> HttpResponse:
    try:
        act()
    except Refused as error:
        messages.error(request, str(error))
    return redirect("environment-list")


def _render(request: HttpRequest, form: CreateForm, *, evict: EvictForm | None = None) -> HttpResponse:
    store = Store()
    ctx = {
        "form": form,
        "evict": evict or EvictForm(),
        "rows": read_environments(store),
        "half": list_half_built(store),
        "directory": store.path,
        "wishes": read_wishes(),
    }
    failed = form.errors or (evict is not None and evict.errors)
    return render(request, "environments/list.html", ctx, status=400 if failed else 200)
