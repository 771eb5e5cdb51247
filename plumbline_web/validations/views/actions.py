"""What is done to one validation: cancel, retry, judge again. All by POST, all refused with a page that says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.models import User
from plumbline_web.validations.domain import Refused, cancel, rejudge, retry
from plumbline_web.validations.models import Validation
from plumbline_web.validations.submission import InvalidSubmission

STATUS: Mapping[str, int] = {"forbidden": 403}
"""HTTP status of a refusal by its code; every other is 409: the state is not what the form was drawn from."""


@require_POST
def validation_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    version = request.POST.get("version", "")

    def act(validation: Validation, user: User) -> Validation:
        cancel(validation, by=user, version=int(version) if version.isdecimal() and len(version) < 10 else None)
        messages.success(request, f"{validation.number} is cancelled; what it had recorded is kept.")
        return validation

    return _act(request, pk, act)


@require_POST
def validation_retry(request: HttpRequest, pk: int) -> HttpResponse:
    def act(validation: Validation, user: User) -> Validation:
        again = retry(validation, by=user)
        messages.success(request, f"{again.number} repeats {validation.number} with fresh captures.")
        return again

    return _act(request, pk, act)


@require_POST
def validation_rejudge(request: HttpRequest, pk: int) -> HttpResponse:
    def act(validation: Validation, user: User) -> Validation:
        rejudge(validation, by=user)
        messages.success(request, "The stored captures are judged again; a verdict that changes is in the timeline.")
        return validation

    return _act(request, pk, act)


def _act(request: HttpRequest, pk: int, act: Callable[[Validation, User], Validation]) -> HttpResponse:
    user = signed_in(request)
    validation = get_object_or_404(Validation.objects.visible_to(user).with_names(), pk=pk)
    try:
        return redirect("validation-detail", pk=act(validation, user).pk)
    except (Refused, InvalidSubmission) as error:
        validation.refresh_from_db()
        code = error.code if isinstance(error, Refused) else "invalid"
        ctx = {"error": error, "code": code, "validation": validation}
        return render(request, "validations/refused.html", ctx, status=STATUS.get(code, 409))
