"""The one filter of problems: the page, the API and the exports narrow the catalogue by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, cast

import django_filters
from django import forms
from django.contrib.postgres.search import SearchQuery
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from plumbline_web.problems.enums import Provenance, UpstreamStatus
from plumbline_web.problems.facets import Facets, read_facets
from plumbline_web.problems.models import LANGUAGE, Problem, ProblemQuerySet
from plumbline_web.tables.forms import LONGEST_TEXT, FilterForm
from plumbline_web.validations.enums import Pattern

NUMBER = re.compile(r"P-(\d{1,18})", re.IGNORECASE)

SORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "newest": ("newest first", ("-first_seen", "-id")),
    "oldest": ("oldest first", ("first_seen", "id")),
    "number": ("by number", ("id",)),
}
DEFAULT_SORT = "newest"


class ReleaseField(forms.CharField):
    """One release of a package, as `transformers==4.45.2`."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        name, equals, version = (part.strip() for part in text.partition("=="))
        try:
            Requirement(name)
            return canonicalize_name(name), Version(version) if equals else None
        except (InvalidRequirement, InvalidVersion):
            told = f"{text[:40]!r} is no release; write it as transformers==4.45.2, or a package alone"
            raise forms.ValidationError(told) from None


class ReleaseFilter(django_filters.Filter):
    field_class = ReleaseField


def _choice(choices: Any, *, label: str, method: str | None = None, **kwargs: Any) -> django_filters.ChoiceFilter:
    return django_filters.ChoiceFilter(choices=choices, method=method, label=label, **{"empty_label": "any", **kwargs})


class ProblemFilter(django_filters.FilterSet):
    """Facets combine with and."""

    text = django_filters.CharFilter(
        method="filter_text",
        label="Search",
        max_length=LONGEST_TEXT,
        widget=forms.TextInput(attrs={"type": "search", "data-search": "", "placeholder": "P-45, or words"}),
    )
    framework = _choice((), label="Framework")
    pattern = _choice(Pattern.choices, label="Pattern")
    silent = _choice([("yes", "silent"), ("no", "loud")], label="Silent", method="filter_silent")
    status = _choice(UpstreamStatus.choices, label="Upstream")
    provenance = _choice(Provenance.choices, label="Known by")
    stage = _choice((), label="Stage")
    component = _choice((), label="Component")
    model = _choice((), label="Model", method="filter_model")
    caught_by = _choice((), label="Caught by", method="filter_caught_by")
    affects = ReleaseFilter(label="Affects release", method="filter_affects")
    recurs = _choice([("yes", "in a group"), ("no", "alone")], label="Recurrence", method="filter_recurs")
    sort = _choice(
        [(name, title) for name, (title, _) in SORTS.items()],
        label="Order",
        method="filter_nothing",
        empty_label=None,
    )

    class Meta:
        model = Problem
        form = FilterForm
        fields: ClassVar[list[str]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("framework", "stage", "component", "model", "caught_by"):
            self.filters[name].extra["choices"] = self._choices_of(name)

    @cached_property
    def facets(self) -> Facets:
        """What the catalogue holds, asked once: the choices of the facets."""
        return read_facets()

    def _choices_of(self, name: str) -> Callable[[], list[tuple[str, str]]]:
        return lambda: [(value, f"{value} ({count:,})") for value, count in self.facets.of(name)]

    @property
    def qs(self) -> ProblemQuerySet:
        if not hasattr(self, "_qs"):
            assert self.queryset is not None
            queryset = cast(ProblemQuerySet, self.queryset.all())
            if self.is_bound:
                narrowed = self.filter_queryset(queryset) if self.is_valid() else queryset.none()
                queryset = cast(ProblemQuerySet, narrowed)
            self._qs = queryset.order_by(*SORTS[self.sort_name][1])
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

    def filter_nothing(self, queryset: ProblemQuerySet, _name: str, _value: str) -> ProblemQuerySet:
        return queryset

    def filter_silent(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(silent=value == "yes")

    def filter_model(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(models__contains=[value])

    def filter_caught_by(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(caught_by__contains=[value])

    def filter_recurs(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(recurrences__isnull=value == "no").distinct()

    def filter_affects(
        self, queryset: ProblemQuerySet, _name: str, value: tuple[str, Version | None]
    ) -> ProblemQuerySet:
        """Problems *known* to be in a release; of a problem without ranges nothing is known."""
        package, version = value
        named = queryset.filter(affected_spec__contains=[{"package": package}])
        if version is None:
            return named
        found = [
            pk
            for pk, ranges in named.order_by().values_list("pk", "affected_spec")
            if any(each["package"] == package and _holds(each["specifier"], version) for each in ranges)
        ]
        return queryset.filter(pk__in=found)

    def filter_text(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        """A number or a slug finds its problem; words are looked for in their stems, as a search engine takes them."""
        text = value.strip()
        number = NUMBER.fullmatch(text)
        if number:
            return queryset.filter(pk=int(number[1]))
        words = SearchQuery(text, config=LANGUAGE, search_type="websearch")
        return queryset.filter(search=words) | queryset.filter(slug=text.lower())


def _holds(specifier: str, version: Version) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)
