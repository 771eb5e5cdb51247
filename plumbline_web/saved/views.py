"""Saving and deleting a view; both lead back to the list."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.errors import Refused
from plumbline_web.saved.domain import delete_view, save_view, shorten_query
from plumbline_web.saved.models import Listing, SavedView


@require_POST
def view_save(request: HttpRequest) -> HttpResponse:
    listing = request.POST.get("listing", "")
    if listing not in Listing.values:
        raise Http404("There is no such list.")
    query = request.POST.get("query", "").removeprefix("?")
    try:
        view = save_view(
            listing=Listing(listing),
            name=request.POST.get("name", ""),
            query=query,
            is_shared="shared" in request.POST,
            owner=signed_in(request),
        )
    except Refused as error:
        messages.error(request, str(error))
        short = shorten_query(query)
        return HttpResponseRedirect(f"{reverse(listing)}?{short}" if short else reverse(listing))
    messages.success(request, f"The view {view.name} is saved.")
    return HttpResponseRedirect(view.address)


@require_POST
def view_delete(request: HttpRequest, pk: int) -> HttpResponse:
    user = signed_in(request)
    view = get_object_or_404(SavedView.objects.visible_to(user).select_related("owner"), pk=pk)
    try:
        delete_view(view, by=user)
    except Refused as error:
        raise PermissionDenied(str(error)) from error
    messages.success(request, f"The view {view.name} is deleted.")
    return redirect(view.listing)
