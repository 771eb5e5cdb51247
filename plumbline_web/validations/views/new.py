"""The form of a new validation, and its preview."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from plumbline_web.accounts.access import signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.catalog.models import Profile
from plumbline_web.validations import forms
from plumbline_web.validations.domain import Refused, preview, submission_of, submit
from plumbline_web.validations.fields import Drawn, draw
from plumbline_web.validations.models import Validation
from plumbline_web.validations.submission import InvalidSubmission, read_submission


@require_http_methods(["GET", "HEAD", "POST"])
def validation_new(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    if request.method == "POST":
        return _submit(request, user)
    source = _find(user, request.GET.get("clone", ""))
    profile = _find_profile(request.GET.get("profile", ""))
    if source is not None:
        entries = forms.read_clone(submission_of(source), source=str(source.pk))
        return _draw(request, draw(entries, origin=entries), source=source)
    entries = forms.read_query(request.GET) if profile is None else forms.read_profile(profile)
    return _draw(request, draw(entries))


def _submit(request: HttpRequest, user: User) -> HttpResponse:
    entries = forms.read_post(request.POST)
    source, profile = _find(user, entries.cloned_from), _find_profile(entries.profile)
    follows = profile is not None and forms.follows(entries, profile)
    errors = entries.errors()
    try:
        submission = read_submission(entries.values())
        if not errors:
            validation, is_new = submit(
                submission,
                owner=user,
                idempotency_key=entries.key,
                cloned_from=source,
                profile=profile if follows else None,
            )
            _say(request, validation, is_new=is_new, left=None if follows else profile)
            return redirect("validation-detail", pk=validation.pk)
    except InvalidSubmission as error:
        errors = {**error.errors, **errors}
    except Refused as error:
        return render(request, "validations/refused.html", {"error": error, "validation": source}, status=403)
    origin = forms.read_clone(submission_of(source), source=entries.cloned_from) if source is not None else None
    return _draw(request, draw(entries, errors=errors, origin=origin), source=source)


def _say(request: HttpRequest, validation: Validation, *, is_new: bool, left: Profile | None) -> None:
    if not is_new:
        messages.info(request, f"This form was sent twice; it is one validation, {validation.number}.")
    elif left is not None:
        messages.info(request, f"It differs from the profile {left}, and does not count under its name.")


@require_POST
def validation_preview(request: HttpRequest) -> HttpResponse:
    """What the form as it stands would take; errors are told, never enforced here."""
    user = signed_in(request)
    entries = forms.read_post(request.POST)
    if not user.has_role(Role.SUBMITTER):
        return render(request, "validations/_preview.html", {"may_submit": False})
    if not all(entries.text(name) for name in ("framework", "model", "data")):
        return render(request, "validations/_preview.html", {"may_submit": True})
    errors = entries.errors()
    found = None
    try:
        found = preview(read_submission(entries.values()), user=user)
    except InvalidSubmission as error:
        errors = {**error.errors, **errors}
    ctx = {"may_submit": True, "preview": None if errors else found, "errors": draw(entries, errors=errors).errors}
    return render(request, "validations/_preview.html", ctx)


def _draw(request: HttpRequest, form: Drawn, *, source: Validation | None = None) -> HttpResponse:
    ctx = {
        "form": form,
        "source": source,
        "profiles": Profile.objects.order_by("name", "-version")[:20],
        "may_submit": signed_in(request).has_role(Role.SUBMITTER),
    }
    return render(request, "validations/new.html", ctx, status=400 if form.errors else 200)


def _find(user: User, number: str) -> Validation | None:
    """The validation that is cloned; one that is gone makes a plain form."""
    digits = number.removeprefix("V-")
    if not digits.isdecimal() or len(digits) > 18:
        return None
    return Validation.objects.visible_to(user).with_names().filter(pk=int(digits)).first()


def _find_profile(value: str) -> Profile | None:
    if "\0" in value:
        raise BadRequest("profile holds a null character")
    name, _, version = value.rpartition("@")
    if not version.isdecimal() or len(version) > 9:
        return None
    return Profile.objects.filter(name=name, version=int(version)).first()
