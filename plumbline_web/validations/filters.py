"""The one filter of validations: the page, the API and the exports narrow the list by it.

`ValidationFilter(data, queryset=…)`: `data` is a QueryDict or a dict of texts; `.is_valid()`, `.errors` (field →
sentences) and `.qs`. Whoever shows `.qs` without asking `.is_valid()` gets nothing for a filter that is wrong, never
the unfiltered list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, cast

import django_filters
from django import forms
from django.db.models import Exists, F, OuterRef, Value
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from checks.registry import CHECKS
from plumbline_web.jobs.enums import Queue
from plumbline_web.tables.forms import LONGEST_TEXT, FilterForm
from plumbline_web.validations.enums import OPEN, FindingState, Pattern, State, Status
from plumbline_web.validations.models import CheckResult, Finding, Validation
from plumbline_web.validations.names import NO_PROFILE, Names, read_names
from plumbline_web.validations.querysets import ValidationQuerySet

LAST_MOMENT = datetime.max.replace(tzinfo=UTC)

NUMBER = re.compile(r"(?:V-)?(\d{1,18})", re.IGNORECASE)

SORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "newest": ("newest first", ("-created_at", "-id")),
    "oldest": ("oldest first", ("created_at", "id")),
    "slowest": ("longest first", ("-duration", "-id")),
    "fastest": ("shortest first", ("duration", "id")),
    "worst": ("most failures first", ("-failed", "-created_at", "-id")),
}
DEFAULT_SORT = "newest"

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


def _choice(choices: Any, *, method: str | None = None, label: str, **kwargs: Any) -> django_filters.ChoiceFilter:
    return django_filters.ChoiceFilter(choices=choices, method=method, label=label, **{"empty_label": "any", **kwargs})


class ValidationFilter(django_filters.FilterSet):
    """Facets combine with and; `status` speaks of `check` where both are given, of any check else."""

    text = django_filters.CharFilter(
        method="filter_text",
        label="Search",
        max_length=LONGEST_TEXT,
        widget=forms.TextInput(attrs={"type": "search", "data-search": "", "placeholder": "V-12, or words"}),
    )
    framework = _choice((), label="Framework", method="filter_framework")
    model = _choice((), label="Model", method="filter_model")
    verdict = _choice(Status.choices, label="Verdict")
    state = _choice([*State.choices, ("open", "queued or running")], label="State", method="filter_state")
    check = _choice([(name, name) for name in CHECKS], label="Check", method="filter_check")
    status = _choice(Status.choices, label="Check's status", method="filter_check")
    pattern = _choice(Pattern.choices, label="Pattern", method="filter_pattern")
    profile = _choice((), label="Profile", method="filter_profile")
    who = _choice((), label="Who", method="filter_who")
    queue = _choice(Queue.choices, label="Queue")
    since = MomentFilter(label="Since", method="filter_since")
    until = MomentFilter(label="Until", method="filter_until")
    sort = _choice(
        [(name, title) for name, (title, _) in SORTS.items()],
        label="Order",
        method="filter_nothing",
        empty_label=None,  # the first is in force where none is given
    )

    class Meta:
        model = Validation
        form = FilterForm
        fields: ClassVar[list[str]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("framework", "model", "profile", "who"):
            self.filters[name].extra["choices"] = self._choices_of(name)

    @cached_property
    def names(self) -> Names:
        """The small tables, read once: they are the choices, and the words of a search are looked up in them."""
        return read_names()

    def _choices_of(self, name: str) -> Callable[[], list[tuple[str, str]]]:
        # A function, because forms copy their fields deeply: a bound method would take a copy of all this with it.
        return lambda: self.names.choices(name)

    @property
    def qs(self) -> ValidationQuerySet:
        if not hasattr(self, "_qs"):
            assert self.queryset is not None  # given, or that of Meta.model
            queryset = cast(ValidationQuerySet, self.queryset.all())
            if self.is_bound:
                narrowed = self.filter_queryset(queryset) if self.is_valid() else queryset.none()
                queryset = cast(ValidationQuerySet, narrowed)
            self._qs = order(queryset, self.sort_name)
        return self._qs

    @property
    def sort_name(self) -> str:
        name: str = (self.form.cleaned_data.get("sort") if self.is_bound and self.is_valid() else "") or DEFAULT_SORT
        return name

    @property
    def unknown(self) -> dict[str, Any]:
        """Errors that belong to no field: parameters that are no filters."""
        return {name: errors for name, errors in self.errors.items() if name not in self.form.fields}

    def active(self) -> tuple[str, ...]:
        """Names of the facets that narrow the list."""
        if not self.is_bound or not self.is_valid():
            return ()
        return tuple(name for name, value in self.form.cleaned_data.items() if value and name != "sort")

    def filter_nothing(self, queryset: ValidationQuerySet, _name: str, _value: str) -> ValidationQuerySet:
        return queryset

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
        findings = Finding.objects.filter(
            validation=OuterRef("pk"), pattern=value, state__in=[FindingState.OPEN, FindingState.DECIDED]
        )
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


def order(queryset: ValidationQuerySet, name: str) -> ValidationQuerySet:
    """The list in one of SORTS; by number where the first key is equal, so that pages do not overlap."""
    if name in DURATION_NAMES:
        queryset = queryset.annotate(duration=DURATION)
    return queryset.order_by(*SORTS[name][1])
