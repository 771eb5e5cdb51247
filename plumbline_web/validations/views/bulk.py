"""Cancelling several validations: the set is resolved on the server, and its count shown before anything is done."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from plumbline_web.accounts.access import signed_in
from plumbline_web.validations.domain import Refused, cancel
from plumbline_web.validations.filters import ValidationFilter
from plumbline_web.validations.models import Validation
from plumbline_web.validations.querysets import ValidationQuerySet

MOST_AT_ONCE = 500
"""Validations that one request cancels; it takes a few queries for each."""

LONGEST_NUMBER = 18
"""Digits of the largest number that a validation may have."""


@require_POST
def cancel_many(request: HttpRequest) -> HttpResponse:
    """First says what would be cancelled and what not, with the reason; cancels when that page is confirmed."""
    user = signed_in(request)
    chosen = _resolve(request).with_names()
    changeable = list(chosen.changeable_by(user).filter(state__in=("queued", "running")).order_by("pk")[:MOST_AT_ONCE])
    if "confirmed" not in request.POST:
        ids = [validation.pk for validation in changeable]
        ctx = {
            "changeable": changeable,
            "ended": chosen.exclude(state__in=("queued", "running")).order_by()[:MOST_AT_ONCE].count(),
            "others": _open_of_others(chosen, ids).count(),
            "most": MOST_AT_ONCE,
        }
        return render(request, "validations/cancel_many.html", ctx)
    skipped = []
    for validation in changeable:
        try:
            cancel(validation, by=user)
        except Refused as error:  # it ended between the question and the answer
            skipped.append(str(error))
    done = len(changeable) - len(skipped)
    messages.success(request, f"{done} validation{'' if done == 1 else 's'} cancelled. {' '.join(skipped[:5])}".strip())
    return redirect("validation-list")


def _open_of_others(chosen: ValidationQuerySet, ids: list[int]) -> ValidationQuerySet:
    return chosen.filter(state__in=("queued", "running")).exclude(pk__in=ids)


def _resolve(request: HttpRequest) -> ValidationQuerySet:
    """The rows that were ticked; with `all`, every row of the filter that the list was drawn with."""
    visible = Validation.objects.visible_to(signed_in(request))
    if "all" in request.POST:
        found = ValidationFilter(request.GET, queryset=visible)
        return found.qs if found.is_valid() else visible.none()
    numbers = [int(value) for value in request.POST.getlist("v") if value.isdecimal() and len(value) <= LONGEST_NUMBER]
    return visible.filter(pk__in=numbers)
