"""What triage adds to pages: `{% load triage %}`."""

from __future__ import annotations

from dataclasses import dataclass

from django import template
from django.db.models import Count
from django.utils.safestring import SafeString

from plumbline_web.markdown import render_markdown
from plumbline_web.problems.models import Problem
from plumbline_web.triage.models import Occurrence
from plumbline_web.triage.occurrences import list_merged, list_occurrences
from plumbline_web.validations.enums import CONFIRMED, Decision
from plumbline_web.validations.models import Finding

register = template.Library()

SHOWN = 20
"""Findings on a problem's page; the queue's filter has all."""


@register.filter
def markdown(text: str) -> SafeString:
    """HTML of a text that a person wrote, without anything that runs or loads."""
    return render_markdown(text)


@dataclass(frozen=True)
class Seen:
    """Findings that are a problem: how many, the newest of them, and the problems that were merged into it."""

    count: int
    rows: tuple[Occurrence, ...]
    merged: tuple[Problem, ...]


@dataclass(frozen=True)
class FieldRecord:
    """What people said of a check's findings in this installation. `wrong`: the check, or its reference, was."""

    confirmed: int
    not_a_problem: int
    wrong: int

    @property
    def decided(self) -> int:
        return self.confirmed + self.not_a_problem + self.wrong


@register.simple_tag
def field_record(check: str) -> FieldRecord:
    """How a check does in the field: its false alarms among the failures that somebody decided about."""
    rows = Finding.objects.filter(check_name=check).order_by().values_list("decision").annotate(number=Count("pk"))
    counts = dict(rows)
    return FieldRecord(
        confirmed=sum(counts.get(decision, 0) for decision in CONFIRMED),
        not_a_problem=counts.get(Decision.NOT_A_PROBLEM, 0),
        wrong=counts.get(Decision.CHECK_WRONG, 0),
    )


@register.simple_tag
def occurrences_of(problem: Problem) -> Seen:
    """Two queries where nothing was merged and few were seen."""
    keys = list_merged(problem)
    found = list_occurrences(keys)
    rows = tuple(found[: SHOWN + 1])
    count = len(rows) if len(rows) <= SHOWN else found.count()
    merged = Problem.objects.filter(pk__in=keys[1:]).only("pk").order_by("pk") if len(keys) > 1 else ()
    return Seen(count, rows[:SHOWN], tuple(merged))
