"""No sequence of decisions, merges, splits and undoings loses an occurrence or a comment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.problems.models import Problem
from plumbline_web.triage import domain
from plumbline_web.triage.changes import COLUMNS
from plumbline_web.triage.merging import merge
from plumbline_web.triage.models import Action, Comment, Occurrence, OccurrenceChange
from plumbline_web.triage.undo import undo
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import CONFIRMED, Decision
from plumbline_web.validations.models import Finding
from tests.web.factories import make_problem, make_user, make_validation

pytestmark = pytest.mark.django_db

DECISIONS = [decision for decision in Decision if decision != Decision.NEEDS_EVIDENCE]
FINDINGS = 4
PROBLEMS = 3

some = st.sets(st.integers(0, FINDINGS - 1), min_size=1)
one_problem = st.integers(0, PROBLEMS - 1)
deeds = st.one_of(
    st.tuples(st.just("decide"), some, st.sampled_from(DECISIONS), one_problem),
    st.tuples(st.just("reject"), st.integers(0, FINDINGS - 1), one_problem),
    st.tuples(st.just("assign"), some, st.booleans()),
    st.tuples(st.just("split"), some),
    st.tuples(st.just("join"), some),
    st.tuples(st.just("merge"), one_problem, one_problem),
    st.tuples(st.just("comment"), st.integers(0, FINDINGS - 1)),
    st.tuples(st.just("undo"), st.integers(0, 5)),
)

Words = dict[int, tuple[int, int, bool, int]]


class Office:
    """Four findings of two groups, three problems, and somebody who decides."""

    def __init__(self) -> None:
        self.person: User = make_user(Role.TRIAGER)
        for model in ("tiny:qwen3", "tiny:llama"):
            make_validation(model=model, runs=False)
        self.findings = [finding.pk for finding in Finding.objects.order_by("pk")[:FINDINGS]]
        self.problems = [make_problem(f"problem-{number}") for number in range(PROBLEMS)]
        self.comments = 0

    def do(self, deed: tuple[Any, ...]) -> None:
        name, *rest = deed
        getattr(self, name)(*rest)

    def decide(self, places: set[int], decision: Decision, problem: int) -> None:
        keys = [self.findings[place] for place in places]
        named = self.problems[problem] if decision in CONFIRMED else None
        domain.decide(keys, decision=decision, problem=named, reason="why", by=self.person)

    def reject(self, place: int, problem: int) -> None:
        domain.reject(Finding.objects.get(pk=self.findings[place]), problem=self.problems[problem], by=self.person)

    def assign(self, places: set[int], is_given: bool) -> None:
        domain.assign([self.findings[place] for place in places], to=self.person if is_given else None, by=self.person)

    def split(self, places: set[int]) -> None:
        domain.split([self.findings[place] for place in places], by=self.person)

    def join(self, places: set[int]) -> None:
        domain.join([self.findings[place] for place in places], by=self.person)

    def merge(self, problem: int, into: int) -> None:
        merge(self.problems[problem], into=self.problems[into], by=self.person)

    def comment(self, place: int) -> None:
        domain.comment(Finding.objects.get(pk=self.findings[place]), f"said {self.comments}", by=self.person)
        self.comments += 1

    def undo(self, back: int) -> None:
        actions = list(Action.objects.order_by("-pk")[: back + 1])
        if actions:
            undo(actions[-1], by=self.person)

    def look(self) -> tuple[Any, ...]:
        """All that can be undone: findings, what stands of them, and merges."""
        findings = Finding.objects.order_by("pk").values_list("pk", *COLUMNS)
        standing = Occurrence.objects.filter(stands=True).order_by("finding", "problem", "holds")
        merges = Problem.objects.order_by("pk").values_list("pk", "merged_into")
        return list(findings), list(standing.values_list("finding", "problem", "holds")), list(merges)

    def words(self) -> Words:
        return {
            each.pk: (each.finding_id, each.problem_id, each.holds, each.action_id) for each in Occurrence.objects.all()
        }


class Rollback(Exception):
    pass


@settings(max_examples=10, deadline=None)
@given(wishes=st.lists(deeds, min_size=1, max_size=9))
def test_nothing_that_was_said_is_lost_and_undoing_all_leads_back(wishes: list[tuple[Any, ...]]) -> None:
    with suppress(Rollback), transaction.atomic():
        office = Office()
        begun = office.look()
        said: Words = {}
        for wish in wishes:
            with suppress(Refused):
                office.do(wish)
            words = office.words()
            assert said.items() <= words.items()
            said = words
            check_standing(office)
        assert sorted(Comment.objects.values_list("text", flat=True)) == sorted(
            f"said {number}" for number in range(office.comments)
        )
        for action in Action.objects.order_by("-pk"):
            with suppress(Refused):  # an undoing is undone before the deed that it undid
                undo(action, by=office.person)
        assert office.look() == begun
        assert said.items() <= office.words().items()
        assert Comment.objects.count() == office.comments
        raise Rollback


def check_standing(office: Office) -> None:
    """Who is confirmed is one problem and no other; the record says of each word whether it stands."""
    for finding in Finding.objects.filter(pk__in=office.findings):
        held = Occurrence.objects.filter(finding=finding, holds=True, stands=True).count()
        assert held == (1 if finding.decision in CONFIRMED else 0)
    for occurrence in Occurrence.objects.all():
        last = OccurrenceChange.objects.filter(occurrence=occurrence).order_by("-pk")[0]
        assert last.stands == occurrence.stands
