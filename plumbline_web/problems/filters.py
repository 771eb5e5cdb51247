"""The one filter of problems: the page, the API and the exports narrow the catalogue by it."""

from __future__ import annotations

import json
import re
from functools import cached_property, lru_cache
from typing import Any

import django_filters
from django import forms
from django.contrib.postgres.search import SearchQuery
from django.db import connection
from django.db.models import BooleanField, Exists, OuterRef
from django.db.models.expressions import RawSQL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from plumbline_web.problems.enums import Provenance, UpstreamStatus
from plumbline_web.problems.facets import Facets, read_facets
from plumbline_web.problems.models import LANGUAGE, Problem, ProblemQuerySet, Recurrence
from plumbline_web.tables.filters import ListFilter, Sorts, choice, search, sorting
from plumbline_web.validations.enums import Pattern

NUMBER = re.compile(r"P-(\d{1,18})", re.IGNORECASE)

SORTS: Sorts = {
    "newest": ("newest first", ("-first_seen", "-id")),
    "oldest": ("oldest first", ("first_seen", "id")),
    "number": ("by number", ("id",)),
}

SPECIFIERS = f"""
    SELECT DISTINCT range->>'specifier' FROM {Problem._meta.db_table}, jsonb_array_elements(affected_spec) AS range
    WHERE affected_spec @> %s::jsonb AND range->>'package' = %s
"""
IN_RANGE = f"""EXISTS (
    SELECT FROM jsonb_array_elements({Problem._meta.db_table}.affected_spec) AS range
    WHERE range->>'package' = %s AND range->>'specifier' = ANY(%s)
)"""


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


class ProblemFilter(ListFilter[ProblemQuerySet]):
    """The facets of the catalogue."""

    SORTS = SORTS
    READ_FACETS = ("framework", "stage", "component", "model", "caught_by")

    text = search("P-45, or words")
    framework = choice(label="Framework")
    pattern = choice(Pattern.choices, label="Pattern")
    silent = choice([("yes", "silent"), ("no", "loud")], label="Silent", method="filter_silent")
    status = choice(UpstreamStatus.choices, label="Upstream")
    provenance = choice(Provenance.choices, label="Known by")
    stage = choice(label="Stage")
    component = choice(label="Component")
    model = choice(label="Model", method="filter_model")
    caught_by = choice(label="Caught by", method="filter_caught_by")
    affects = ReleaseFilter(label="Affects release", method="filter_affects")
    recurs = choice([("yes", "in a group"), ("no", "alone")], label="Recurrence", method="filter_recurs")
    sort = sorting(SORTS)

    class Meta(ListFilter.Meta):
        model = Problem

    @cached_property
    def facets(self) -> Facets:
        """What the catalogue holds, asked once: the choices of the facets."""
        return read_facets()

    def read_choices(self, name: str) -> list[tuple[str, str]]:
        return [(value, f"{value} ({count:,})") for value, count in self.facets.of(name)]

    def filter_silent(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(silent=value == "yes")

    def filter_model(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(models__contains=[value])

    def filter_caught_by(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        return queryset.filter(caught_by__contains=[value])

    def filter_recurs(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        grouped = Exists(Recurrence.problems.through.objects.filter(problem=OuterRef("pk")))
        return queryset.filter(grouped if value == "yes" else ~grouped)

    def filter_affects(
        self, queryset: ProblemQuerySet, _name: str, value: tuple[str, Version | None]
    ) -> ProblemQuerySet:
        """Problems *known* to be in a release; of a problem without ranges nothing is known."""
        package, version = value
        named = queryset.filter(affected_spec__contains=[{"package": package}])
        if version is None:
            return named
        holding = [text for text in _list_specifiers(package) if _holds(text, str(version))]
        return named.filter(RawSQL(IN_RANGE, (package, holding), output_field=BooleanField()))

    def filter_text(self, queryset: ProblemQuerySet, _name: str, value: str) -> ProblemQuerySet:
        """A number or a slug finds its problem; words are looked for in their stems, as a search engine takes them."""
        text = value.strip()
        number = NUMBER.fullmatch(text)
        if number:
            return queryset.filter(pk=int(number[1]))
        words = SearchQuery(text, config=LANGUAGE, search_type="websearch")
        return queryset.filter(search=words) | queryset.filter(slug=text.lower())


def _list_specifiers(package: str) -> list[str]:
    """The different ranges that the catalogue gives for a package: far fewer than problems."""
    with connection.cursor() as cursor:
        cursor.execute(SPECIFIERS, [json.dumps([{"package": package}]), package])
        return [text for (text,) in cursor.fetchall()]


@lru_cache(maxsize=20_000)
def _holds(specifier: str, version: str) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)
