"""The page of schedules: everyone reads it, administrators change it."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from plumbline_web.accounts.access import requires, signed_in
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.errors import Refused as AccountRefused
from plumbline_web.catalog.domain import create_profile, create_schedule, disable, enable
from plumbline_web.catalog.enums import Trigger
from plumbline_web.catalog.forms import ProfileForm, ScheduleForm
from plumbline_web.catalog.models import Profile, Schedule
from plumbline_web.catalog.repeating import run_now
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.models import Validation
from plumbline_web.validations.submission import InvalidSubmission, check_roots, read_submission

MOST_SHOWN = 500


@require_safe
def schedule_list(request: HttpRequest) -> HttpResponse:
    return _render(request)


@require_POST
@requires(Role.ADMINISTRATOR)
def schedule_new(request: HttpRequest) -> HttpResponse:
    form = ScheduleForm(request.POST)
    if form.is_valid():
        values = form.cleaned_data
        try:
            schedule = create_schedule(
                values["profile"],
                framework=values["framework"],
                model=values["model"],
                trigger=Trigger(values["trigger"]),
                hour=values["hour"],
                by=signed_in(request),
            )
        except (AccountRefused, InvalidSubmission) as error:
            _show_errors(form, error)
        else:
            messages.success(request, f"{schedule.profile} is repeated {schedule.get_trigger_display()}.")
            return redirect("schedule-list")
    return _render(request, schedule_form=form, status=400)


@require_POST
@requires(Role.ADMINISTRATOR)
def profile_new(request: HttpRequest) -> HttpResponse:
    form = ProfileForm(request.POST)
    if form.is_valid():
        values = form.cleaned_data
        try:
            # A profile names no framework and no model: any will do for reading the rest.
            given = {"data": values["dataset"], "checks": values["checks"], "settings": values["run_settings"]}
            asked = read_submission(given | _ANY)
            check_roots(asked)
            profile, made = create_profile(
                values["name"], data=asked.data, checks=asked.checks, settings=asked.settings, by=signed_in(request)
            )
        except (AccountRefused, InvalidSubmission) as error:
            _show_errors(form, error)
        else:
            messages.success(request, f"{profile} is made." if made else f"{profile} says the same already.")
            return redirect("schedule-list")
    return _render(request, profile_form=form, status=400)


@require_POST
@requires(Role.ADMINISTRATOR)
def schedule_enable(request: HttpRequest, pk: int) -> HttpResponse:
    enable(get_object_or_404(Schedule, pk=pk), by=signed_in(request))
    return redirect("schedule-list")


@require_POST
@requires(Role.ADMINISTRATOR)
def schedule_disable(request: HttpRequest, pk: int) -> HttpResponse:
    disable(get_object_or_404(Schedule, pk=pk), by=signed_in(request))
    return redirect("schedule-list")


@require_POST
@requires(Role.ADMINISTRATOR)
def schedule_run(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = get_object_or_404(_with_names(), pk=pk)
    try:
        validation = run_now(schedule, by=signed_in(request))
    except (Refused, InvalidSubmission) as error:
        messages.error(request, f"Nothing was submitted: {error}")
        return redirect("schedule-list")
    return redirect("validation-detail", pk=validation.pk)


_FIELDS = {"settings": "run_settings", "data": "dataset"}
"""Names that a submission gives and that a Django form has another use for."""

_ANY = {"framework": "transformers", "model": "tiny:qwen3"}


def _show_errors(form: forms.Form, error: AccountRefused | InvalidSubmission) -> None:
    """Beside the field of the form, a setting's beside the settings; above the form what has no field there."""
    found = error.errors if isinstance(error, InvalidSubmission) else {error.field: str(error)}
    for name, sentence in found.items():
        whole, _, setting = name.partition(".")
        field = _FIELDS.get(whole, whole)
        text = f"{setting}: {sentence}" if setting else sentence
        if field in form.fields:
            form.add_error(field, text)
        else:
            form.add_error(None, f"{name}: {sentence}" if name else sentence)


def _with_names() -> QuerySet[Schedule]:
    latest = Validation.objects.filter(schedule=OuterRef("pk")).order_by("-pk")
    return Schedule.objects.select_related("profile", "framework", "owner").annotate(
        latest_pk=Subquery(latest.values("pk")[:1]),
        latest_state=Subquery(latest.values("state")[:1]),
        latest_verdict=Subquery(latest.values("verdict")[:1]),
    )


def _render(
    request: HttpRequest,
    *,
    schedule_form: ScheduleForm | None = None,
    profile_form: ProfileForm | None = None,
    status: int = 200,
) -> HttpResponse:
    may_change = signed_in(request).has_role(Role.ADMINISTRATOR)
    ctx = {
        "schedules": _with_names().order_by("-enabled", "framework__name", "model", "pk")[:MOST_SHOWN],
        "profiles": Profile.objects.order_by("name", "-version")[:MOST_SHOWN],
        "may_change": may_change,
        "schedule_form": schedule_form or ScheduleForm(),
        "profile_form": profile_form or ProfileForm(),
    }
    return render(request, "catalog/schedules.html", ctx, status=status)
