"""The one filter of findings: the queue, bulk decisions, the API and the exports narrow by it."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, cast

import django_filters
from django import forms
from django.db.models import Exists, OuterRef, QuerySet

from checks.registry import CHECKS
from plumbline_web.accounts.models import User
from plumbline_web.accounts.people import list_triagers
from plumbline_web.problems.models import Problem
from plumbline_web.tables.filters import ListFilter, Sorts, choice, search, sorting
from plumbline_web.triage.models import Occurrence, Pin
from plumbline_web.triage.occurrences import list_merged
from plumbline_web.triage.queue import is_snoozed, list_pending, waiver_of
from plumbline_web.validations.enums import Decision, FindingState, Pattern
from plumbline_web.validations.models import Finding
from plumbline_web.validations.models.findings import FindingQuerySet
from plumbline_web.validations.names import Names

NUMBER = re.compile(r"F-(\d{1,18})", re.IGNORECASE)
PROBLEM = re.compile(r"(?:P-)?([1-9]\d{0,17})", re.IGNORECASE)

SORTS: Sorts = {
    "gravest": ("gravest first", ("-silent", "-regressed", "-created_at", "-id")),
    "newest": ("newest first", ("-created_at", "-id")),
    "oldest": ("oldest first", ("created_at", "id")),
}

STANDINGS = (
    ("pending", "needs a person"),
    ("waiting", "waits for evidence"),
    ("snoozed", "snoozed"),
    ("waived", "waived"),
    ("decided", "decided"),
    ("repeated", "seen again"),
    ("gone", "gone"),
    ("all", "all"),
)

NOBODY = "nobody"


class ProblemField(forms.CharField):
    """A problem's number, as P-45."""

    def clean(self, value: object) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        number = PROBLEM.fullmatch(text.strip())
        if number is None:
            raise forms.ValidationError(f"{text[:40]!r} is no problem; write its number, such as P-45")
        return int(number[1])


class ProblemNumberFilter(django_filters.Filter):
    field_class = ProblemField


class FindingFilter(ListFilter[FindingQuerySet]):
    """The facets of findings. Where no standing is asked for, only those are shown that need a person now."""

    SORTS = SORTS
    READ_FACETS = ("framework", "model", "assignee")

    text = search("F-12, or words")
    standing = choice(
        [each for each in STANDINGS if each[0] != "pending"],
        label="Standing",
        method="filter_nothing",
        empty_label="needs a person",
    )
    framework = choice(label="Framework", method="filter_framework")
    model = choice(label="Model", method="filter_model")
    check = choice([(name, name) for name in CHECKS], label="Check", method="filter_check")
    pattern = choice(Pattern.choices, label="Pattern")
    silent = choice([("yes", "silent"), ("no", "loud")], label="Silent", method="filter_flag")
    regressed = choice([("yes", "had passed before"), ("no", "had not")], label="Regression", method="filter_flag")
    assignee = choice(label="Assigned to", method="filter_assignee")
    decision = choice(Decision.choices, label="Decision")
    problem = ProblemNumberFilter(label="Problem", method="filter_problem")
    pinned = choice([("yes", "pinned by me")], label="Pinboard", method="filter_pinned")
    group = django_filters.CharFilter(label="Group", max_length=80)
    validation = django_filters.NumberFilter(label="Validation", min_value=1, max_value=10**17)
    sort = sorting(SORTS)

    class Meta(ListFilter.Meta):
        model = Finding

    def __init__(self, *args: object, person: User, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.person = person

    @cached_property
    def names(self) -> Names:
        return Names()

    def read_choices(self, name: str) -> list[tuple[str, str]]:
        if name == "assignee":
            return [(NOBODY, "nobody"), *((person.username, person.username) for person in list_triagers())]
        return self.names.choices(name)

    @property
    def standing_name(self) -> str:
        given = self.form.cleaned_data.get("standing") if self.is_bound and self.is_valid() else ""
        return str(given or "pending")

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        narrowed = cast(FindingQuerySet, super().filter_queryset(queryset))
        return narrow_to(narrowed, self.standing_name)

    def filter_framework(self, queryset: FindingQuerySet, _name: str, value: str) -> FindingQuerySet:
        return queryset.filter(validation__framework__in=self.names.find("framework", value))

    def filter_model(self, queryset: FindingQuerySet, _name: str, value: str) -> FindingQuerySet:
        return queryset.filter(validation__model__in=self.names.find("model", value))

    def filter_check(self, queryset: FindingQuerySet, _name: str, value: str) -> FindingQuerySet:
        return queryset.filter(check_name=value)

    def filter_flag(self, queryset: FindingQuerySet, name: str, value: str) -> FindingQuerySet:
        return queryset.filter(**{name: value == "yes"})

    def filter_assignee(self, queryset: FindingQuerySet, _name: str, value: str) -> FindingQuerySet:
        if value == NOBODY:
            return queryset.filter(assignee__isnull=True)
        return queryset.filter(assignee__username=value)

    def filter_problem(self, queryset: FindingQuerySet, _name: str, value: int) -> FindingQuerySet:
        problem = Problem.objects.only("pk").filter(pk=value).first()
        if problem is None:
            return queryset.none()
        said = Occurrence.objects.filter(
            finding=OuterRef("pk"), problem__in=list_merged(problem), holds=True, stands=True
        )
        return queryset.filter(Exists(said))

    def filter_pinned(self, queryset: FindingQuerySet, _name: str, _value: str) -> FindingQuerySet:
        return queryset.filter(Exists(Pin.objects.filter(finding=OuterRef("pk"), owner=self.person)))

    def filter_text(self, queryset: FindingQuerySet, _name: str, value: str) -> FindingQuerySet:
        """A number finds its finding; each word is looked for in the verdict's sentence and the check's name."""
        number = NUMBER.fullmatch(value.strip())
        if number:
            return queryset.filter(pk=int(number[1]))
        for word in value.split()[:12]:
            queryset = queryset.filter(result__sentence__icontains=word) | queryset.filter(check_name__icontains=word)
        return queryset


def narrow_to(findings: FindingQuerySet, standing: str) -> FindingQuerySet:
    """Those of one of STANDINGS."""
    if standing == "all":
        return findings
    if standing == "pending":
        return list_pending(findings)
    if standing == "snoozed":
        return findings.filter(is_snoozed(), state__in=(FindingState.OPEN, FindingState.WAITING))
    if standing == "waived":
        return findings.filter(waiver_of(), state__in=(FindingState.OPEN, FindingState.WAITING))
    return findings.filter(state=standing)
