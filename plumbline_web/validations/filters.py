"""The one filter of validations: the page, the API and the exports narrow the list by it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import django_filters
from django import forms
from django.db.models import Exists, F, OuterRef, Value
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from checks.registry import CHECKS
from plumbline_web.jobs.enums import Queue
from plumbline_web.tables.filters import ListFilter, Sorts, choice, search, sorting
from plumbline_web.validations.enums import OPEN, FindingState, Pattern, State, Status
from plumbline_web.validations.models import CheckResult, Finding, Validation
from plumbline_web.validations.names import NO_PROFILE, Names
from plumbline_web.validations.querysets import ValidationQuerySet

LAST_MOMENT = datetime.max.replace(tzinfo=UTC)

NUMBER = re.compile(r"(?:V-)?(\d{1,18})", re.IGNORECASE)

SORTS: Sorts = {
    "newest": ("newest first", ("-created_at", "-id")),
    "oldest": ("oldest first", ("created_at", "id")),
    "slowest": ("longest first", ("-duration", "-id")),
    "fastest": ("shortest first", ("duration", "id")),
    "worst": ("most failures first", ("-failed", "-created_at", "-id")),
}

DURATION_NAMES = ("slowest", "fastest")
"""Sorts that need the duration, which no row stores."""

DURATION = Coalesce(F("ended_at") - F("started_at"), Value(timedelta(0)))
"""From start to end; nothing for one that has not ended. The index `validation_by_duration` holds just this."""


@dataclass(frozen=True)
class Moment:
    """What someone gave as a time: a moment, or a whole day from `at` on."""

    at: datetime
    is_day: bool

    @property
    def end(self) -> datetime:
        """The first moment that is later than what was meant."""
        try:
            return self.at + (timedelta(days=1) if self.is_day else timedelta(microseconds=1))
        except OverflowError:  # the last day of the calendar
            return LAST_MOMENT


class MomentField(forms.CharField):
    """A date, or a date with time, in UTC where it names no zone."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            date = parse_date(text)
            moment = None if date else parse_datetime(text)
        except ValueError:  # well formed, and no day of any calendar
            date = moment = None
        if date is not None:
            return Moment(datetime(date.year, date.month, date.day, tzinfo=UTC), is_day=True)
        if moment is not None:
            aware = moment if timezone.is_aware(moment) else moment.replace(tzinfo=UTC)
            try:
                # PostgreSQL takes fewer offsets than Python writes; in UTC it takes every moment.
                return Moment(aware.astimezone(UTC), is_day=False)
            except OverflowError:  # within its zone's calendar, and beyond that of UTC
                pass
        raise forms.ValidationError(f"{text[:40]!r} is no date; write it as 2026-11-29 or 2026-11-29T17:00")


class MomentFilter(django_filters.Filter):
    field_class = MomentField


class ValidationFilter(ListFilter[ValidationQuerySet]):
    """`status` speaks of `check` where both are given, of any check else."""

    SORTS = SORTS
    READ_FACETS = ("framework", "model", "profile", "who")

    text = search("V-12, or words")
    framework = choice(label="Framework", method="filter_framework")
    model = choice(label="Model", method="filter_model")
    verdict = choice(Status.choices, label="Verdict")
    state = choice([*State.choices, ("open", "queued or running")], label="State", method="filter_state")
    check = choice([(name, name) for name in CHECKS], label="Check", method="filter_check")
    status = choice(Status.choices, label="Check's status", method="filter_check")
    pattern = choice(Pattern.choices, label="Pattern", method="filter_pattern")
    profile = choice(label="Profile", method="filter_profile")
    who = choice(label="Who", method="filter_who")
    queue = choice(Queue.choices, label="Queue")
    since = MomentFilter(label="Since", method="filter_since")
    until = MomentFilter(label="Until", method="filter_until")
    sort = sorting(SORTS)

    class Meta(ListFilter.Meta):
        model = Validation

    @cached_property
    def names(self) -> Names:
        """The small tables, read once: they are the choices, and the words of a search are looked up in them."""
        return Names()

    def read_choices(self, name: str) -> list[tuple[str, str]]:
        return self.names.choices(name)

    def order(self, queryset: ValidationQuerySet) -> ValidationQuerySet:
        return super().order(queryset.annotate(duration=DURATION) if self.sort_name in DURATION_NAMES else queryset)

    def filter_state(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        return queryset.filter(state__in=OPEN) if value == "open" else queryset.filter(state=value)

    def filter_check(self, queryset: ValidationQuerySet, name: str, value: str) -> ValidationQuerySet:
        """One condition for `check` and `status` together: a validation in which *that* check ended *so*."""
        given = self.form.cleaned_data
        if name == "status" and given.get("check"):
            return queryset  # was narrowed by `check`
        column = {"check": "check_name", "status": "status"}[name]
        conditions = {column: value, "superseded_at__isnull": True}
        if name == "check" and given.get("status"):
            conditions["status"] = given["status"]
        return queryset.filter(Exists(CheckResult.objects.filter(validation=OuterRef("pk"), **conditions)))

    def filter_pattern(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        # Every failing verdict has its finding, and those are a hundredth of the verdicts, with an index for this.
        standing = [state for state in FindingState if state != FindingState.GONE]
        findings = Finding.objects.filter(validation=OuterRef("pk"), pattern=value, state__in=standing)
        return queryset.filter(Exists(findings))

    def filter_framework(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        return queryset.filter(framework__in=self.names.find("framework", value))

    def filter_model(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        return queryset.filter(model__in=self.names.find("model", value))

    def filter_who(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        return queryset.filter(owner__in=self.names.find("who", value))

    def filter_profile(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        if value == NO_PROFILE:
            return queryset.filter(profile__isnull=True)
        return queryset.filter(profile__in=self.names.find("profile", value))

    def filter_since(self, queryset: ValidationQuerySet, _name: str, value: Moment) -> ValidationQuerySet:
        return queryset.filter(created_at__gte=value.at)

    def filter_until(self, queryset: ValidationQuerySet, _name: str, value: Moment) -> ValidationQuerySet:
        """A day is included to its end."""
        return queryset.filter(created_at__lt=value.end)

    def filter_text(self, queryset: ValidationQuerySet, _name: str, value: str) -> ValidationQuerySet:
        """A number finds its validation; words find framework, model, profile, person or fault: every word one."""
        number = NUMBER.fullmatch(value.strip())
        if number:
            return queryset.filter(pk=int(number[1]))
        for word in value.lower().split():
            mentions = self.names.mentions(word)
            if mentions is None:
                return queryset.none()
            queryset = queryset.filter(mentions)
        return queryset
