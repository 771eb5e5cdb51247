"""What the filters of all lists share: facets, an order, and nothing shown for a filter that is wrong.

A list's filter derives from `ListFilter`, names its orders in SORTS and those facets in READ_FACETS whose values lie in
the database:

    class FindingFilter(ListFilter[FindingQuerySet]):
        SORTS = {"newest": ("newest first", ("-created_at", "-id"))}
        READ_FACETS = ("framework",)
        text = search("V-12, or words")
        framework = choice(label="Framework")
        sort = sorting(SORTS)

        class Meta(ListFilter.Meta):
            model = Finding

        def read_choices(self, name): ...

`FindingFilter(data, queryset=…)`: `data` is a QueryDict or a dict of texts. The page, the API and the exports narrow
their rows by it; whoever shows `.qs` without asking `.is_valid()` gets no row for a filter that is wrong, never the
unfiltered list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import django_filters
from django import forms
from django.db.models import QuerySet

from plumbline_web.tables.forms import LONGEST_TEXT, FilterForm, PlainSelect

Sorts = Mapping[str, tuple[str, tuple[str, ...]]]
"""name → what a person reads, the columns as `order_by` takes them; the last column is unique, so that pages do not
overlap. The first order is in force where none is given."""

Q = TypeVar("Q", bound=QuerySet[Any])

SORT = "sort"


def choice(choices: Any = (), *, label: str, method: str | None = None, **kwargs: Any) -> django_filters.ChoiceFilter:
    """A facet of which one value is chosen, or any."""
    return django_filters.ChoiceFilter(
        choices=choices, method=method, label=label, **{"empty_label": "any", "widget": PlainSelect, **kwargs}
    )


def search(placeholder: str) -> django_filters.CharFilter:
    """The field of words; the filter's `filter_text` looks for them."""
    attrs = {"type": "search", "data-search": "", "placeholder": placeholder}
    return django_filters.CharFilter(
        method="filter_text", label="Search", max_length=LONGEST_TEXT, widget=forms.TextInput(attrs=attrs)
    )


def sorting(sorts: Sorts) -> django_filters.ChoiceFilter:
    """The order, a parameter of the address like the facets; it narrows nothing."""
    titles = [(name, title) for name, (title, _) in sorts.items()]
    return choice(titles, label="Order", method="filter_nothing", empty_label=None)


class ListFilter(django_filters.FilterSet, Generic[Q]):
    """Facets combine with and."""

    SORTS: ClassVar[Sorts]
    READ_FACETS: ClassVar[Sequence[str]] = ()

    class Meta:
        form = FilterForm
        fields: ClassVar[list[str]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.READ_FACETS:
            self.filters[name].extra["choices"] = self._choices_of(name)

    def _choices_of(self, name: str) -> Callable[[], list[tuple[str, str]]]:
        # A function, because forms copy their fields deeply: a bound method would take a copy of all this with it.
        return lambda: self.read_choices(name)

    def read_choices(self, name: str) -> list[tuple[str, str]]:
        """Value and title of each choice of a facet of READ_FACETS; asked when the form is."""
        raise TypeError(f"{type(self).__name__} names {name!r} in READ_FACETS and says no choices of it")

    @property
    def qs(self) -> Q:
        if not hasattr(self, "_qs"):
            assert self.queryset is not None  # given, or that of Meta.model
            queryset = self.queryset.all()
            if self.is_bound:
                queryset = self.filter_queryset(queryset) if self.is_valid() else queryset.none()
            self._qs = self.order(cast(Q, queryset))
        return self._qs

    def order(self, queryset: Q) -> Q:
        """The rows in the chosen order."""
        return queryset.order_by(*self.SORTS[self.sort_name][1])

    @property
    def default_sort(self) -> str:
        return next(iter(self.SORTS))

    @property
    def sort_name(self) -> str:
        given = self.form.cleaned_data.get(SORT) if self.is_bound and self.is_valid() else ""
        return str(given or self.default_sort)

    @property
    def unknown(self) -> dict[str, Any]:
        """Errors that belong to no field: parameters that are no filters."""
        return {name: errors for name, errors in self.errors.items() if name not in self.form.fields}

    def active(self) -> tuple[str, ...]:
        """Names of the facets that narrow the list."""
        if not self.is_bound or not self.is_valid():
            return ()
        return tuple(name for name, value in self.form.cleaned_data.items() if value and name != SORT)

    def filter_nothing(self, queryset: Q, _name: str, _value: str) -> Q:
        return queryset
