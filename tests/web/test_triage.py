"""Deciding about findings: what each decision writes, what is refused, what is told apart, and what is undone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.notifications.models import Notification
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.triage import domain
from plumbline_web.triage.merging import merge
from plumbline_web.triage.models import Action, Change, Comment, Occurrence, Pin
from plumbline_web.triage.occurrences import list_merged, list_occurrences
from plumbline_web.triage.undo import find_last, undo
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import Decision, FindingState
from plumbline_web.validations.models import Finding, Validation
from tests.web.factories import (
    failing_verdicts,
    make_environment,
    make_problem,
    make_user,
    make_validation,
    passing_verdicts,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def ana() -> User:
    return make_user(Role.TRIAGER, username="ana")


@pytest.fixture
def bo() -> User:
    return make_user(Role.TRIAGER, username="bo")


def findings_of(validation: Validation) -> list[Finding]:
    return list(validation.findings.order_by("pk"))


def keys(findings: list[Finding]) -> list[int]:
    return [finding.pk for finding in findings]


def test_a_known_problem_is_an_occurrence_with_its_event_and_its_record(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    problem = make_problem()
    outcome = domain.decide([finding.pk], decision=Decision.KNOWN, problem=problem, by=ana)
    assert keys(list(outcome.changed)) == [finding.pk]
    finding.refresh_from_db()
    assert (finding.state, finding.decision, finding.decided_by, finding.version) == ("decided", "known", ana, 2)
    (occurrence,) = list_occurrences(list_merged(problem))
    assert (occurrence.finding_id, occurrence.holds, occurrence.action) == (finding.pk, True, outcome.action)
    (event,) = Event.objects.filter(subject=Subject.FINDING, subject_id=finding.pk)
    assert (event.text, event.actor) == (f"decided: confirmed, known {problem.number}", ana)
    (change,) = Change.objects.all()
    assert (change.before["state"], change.after["state"]) == ("open", "decided")


@pytest.mark.parametrize(
    ("decision", "word"),
    [
        (Decision.KNOWN, "names no problem"),
        (Decision.NEW, "names no problem"),
        (Decision.NOT_A_PROBLEM, "has no reason"),
        (Decision.CHECK_WRONG, "has no reason"),
    ],
)
def test_a_decision_that_lacks_its_half_is_refused(ana: User, decision: Decision, word: str) -> None:
    finding, *_ = findings_of(make_validation())
    with pytest.raises(Refused, match=word):
        domain.decide([finding.pk], decision=decision, by=ana, reason="  ")
    assert not Action.objects.exists()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER])
def test_who_is_no_triager_decides_nothing(role: Role) -> None:
    finding, *_ = findings_of(make_validation())
    person = make_user(role)
    for wish in (
        lambda: domain.decide([finding.pk], decision=Decision.INCONCLUSIVE, by=person),
        lambda: domain.assign([finding.pk], to=None, by=person),
        lambda: domain.snooze([finding.pk], until=None, by=person),
        lambda: domain.split([finding.pk], by=person),
        lambda: domain.join([finding.pk], by=person),
        lambda: domain.comment(finding, "hm", by=person),
        lambda: domain.reject(finding, problem=make_problem(), by=person),
        lambda: merge(make_problem(), into=make_problem("another"), by=person),
    ):
        with pytest.raises(Refused, match="role triager"):
            wish()
    assert not Action.objects.exists()


def test_two_people_deciding_at_once_lose_nothing(ana: User, bo: User) -> None:
    finding, *_ = findings_of(make_validation())
    seen = {finding.pk: finding.version}
    domain.decide([finding.pk], decision=Decision.KNOWN, problem=make_problem(), by=ana, versions=seen)
    late = domain.decide([finding.pk], decision=Decision.INCONCLUSIVE, by=bo, versions=seen)
    assert late.action is None
    (skipped,) = late.skipped
    assert "ana decided: confirmed, known P-" in skipped.reason
    finding.refresh_from_db()
    assert finding.decision == "known"
    again = domain.decide([finding.pk], decision=Decision.INCONCLUSIVE, by=bo, versions={finding.pk: finding.version})
    assert keys(list(again.changed)) == [finding.pk]
    assert [(each.stands, each.holds) for each in Occurrence.objects.all()] == [(False, True)]


def test_what_is_so_already_and_what_is_gone_is_skipped_with_its_reason(ana: User) -> None:
    first, second, *_ = findings_of(make_validation())
    Finding.objects.filter(pk=second.pk).update(state=FindingState.GONE)
    domain.decide([first.pk], decision=Decision.INCONCLUSIVE, by=ana)
    outcome = domain.decide([first.pk, second.pk], decision=Decision.INCONCLUSIVE, by=ana)
    assert outcome.action is None
    assert [each.reason for each in outcome.skipped] == [
        f"{first.number} is so already",
        f"{second.number} is gone after a re-judgement; there is nothing to decide",
    ]


def test_undoing_brings_everything_back_and_undoing_that_decides_again(ana: User, bo: User) -> None:
    findings = findings_of(make_validation())
    problem = make_problem()
    domain.assign(keys(findings), to=bo, by=ana)
    decided = domain.decide(keys(findings), decision=Decision.KNOWN, problem=problem, by=ana)
    assert decided.action is not None
    undone = undo(decided.action, by=bo)
    assert keys(list(undone.changed)) == keys(findings)
    for finding in Finding.objects.all():
        assert (finding.state, finding.decision, finding.decided_by, finding.assignee) == ("open", "", None, bo)
    assert not list_occurrences(list_merged(problem)).exists()
    with pytest.raises(Refused, match="bo undid this already"):
        undo(decided.action, by=ana)
    assert undone.action is not None
    undo(undone.action, by=ana)
    assert set(list_occurrences(list_merged(problem)).values_list("finding", flat=True)) == set(keys(findings))
    assert {finding.decided_by for finding in Finding.objects.all()} == {ana}


def test_undoing_leaves_what_somebody_decided_since(ana: User, bo: User) -> None:
    first, second, *_ = findings_of(make_validation())
    action = domain.decide([first.pk, second.pk], decision=Decision.INCONCLUSIVE, by=ana).action
    domain.decide([second.pk], decision=Decision.NOT_A_PROBLEM, reason="the data has one row", by=bo)
    assert action is not None
    outcome = undo(action, by=ana)
    assert keys(list(outcome.changed)) == [first.pk]
    (skipped,) = outcome.skipped
    assert "bo decided: not a problem" in skipped.reason


def test_a_problem_that_was_turned_down_is_remembered_until_it_is_decided_after_all(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    problem = make_problem()
    domain.reject(finding, problem=problem, by=ana)
    domain.reject(finding, problem=problem, by=ana)
    assert list(finding.occurrences.values_list("problem", "holds", "stands")) == [(problem.pk, False, True)]
    domain.decide([finding.pk], decision=Decision.KNOWN, problem=problem, by=ana)
    said = finding.occurrences.order_by("pk").values_list("holds", "stands")
    assert list(said) == [(False, False), (True, True)]
    with pytest.raises(Refused, match="decide it anew"):
        domain.reject(finding, problem=problem, by=ana)


def test_only_who_may_decide_is_assigned(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    with pytest.raises(Refused, match="assign a triager"):
        domain.assign([finding.pk], to=make_user(Role.VIEWER, username="vi"), by=ana)


def test_who_is_assigned_is_told_once_however_many(ana: User, bo: User) -> None:
    findings = findings_of(make_validation())
    domain.assign(keys(findings), to=bo, by=ana)
    domain.assign(keys(findings), to=bo, by=ana)
    (told,) = Notification.objects.filter(kind="assignment")
    first = findings[0]
    assert told.person == bo
    assert told.text == f"ana assigned {first.number} {first.check_name} and 2 more to you"
    assert told.address == "/triage/?assignee=bo"
    domain.assign([first.pk], to=ana, by=ana)
    assert Notification.objects.filter(kind="assignment").count() == 1, "nobody is told of what they did themselves"


def test_snoozing_until_a_day_that_has_been_is_refused(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    with pytest.raises(Refused, match="not to come"):
        domain.snooze([finding.pk], until=timezone.localdate(), by=ana)
    domain.snooze([finding.pk], until=timezone.localdate() + timedelta(days=1), by=ana)
    domain.decide([finding.pk], decision=Decision.INCONCLUSIVE, by=ana)
    finding.refresh_from_db()
    assert finding.snoozed_until is None
    outcome = domain.snooze([finding.pk], until=None, by=ana)
    assert [each.reason for each in outcome.skipped] == [
        f"{finding.number} is decided; only what is open can be put off"
    ]


def test_a_group_is_split_joined_and_undone_and_later_findings_follow(ana: User) -> None:
    first = findings_of(make_validation())[0]
    other = findings_of(make_validation(model="tiny:llama"))[0]
    assert first.group == other.group == first.signature
    with pytest.raises(Refused, match="all findings of their group"):
        domain.split([first.pk, other.pk], by=ana)
    split = domain.split([other.pk], by=ana).action
    other.refresh_from_db()
    assert other.group.startswith(f"{first.signature}#")
    later = findings_of(make_validation(model="tiny:llama"))[0]
    assert later.group == other.group
    assert findings_of(make_validation())[0].group == first.group
    with pytest.raises(Refused, match="one group already"):
        domain.join([other.pk, later.pk], by=ana)
    domain.join([first.pk, other.pk], by=ana)
    assert Finding.objects.filter(group=first.group, check_name=first.check_name).count() == 4
    assert split is not None
    with pytest.raises(Refused, match="nothing can be undone"):
        undo(split, by=ana)


def test_merged_problems_show_their_occurrences_together_and_are_parted_again(ana: User) -> None:
    first, second, *_ = findings_of(make_validation())
    one, two, three = make_problem("one"), make_problem("two"), make_problem("three")
    domain.decide([first.pk], decision=Decision.KNOWN, problem=one, by=ana)
    action = merge(one, into=two, by=ana)
    merge(two, into=three, by=ana)
    domain.decide([second.pk], decision=Decision.KNOWN, problem=one, by=ana)
    assert set(list_occurrences(list_merged(three)).values_list("finding", "problem")) == {
        (first.pk, one.pk),
        (second.pk, three.pk),
    }
    with pytest.raises(Refused, match="with itself"):
        merge(three, into=one, by=ana)
    with pytest.raises(Refused, match="is merged into P-"):
        merge(one, into=three, by=ana)
    undo(action, by=ana)
    assert list(list_occurrences(list_merged(one)).values_list("finding", flat=True)) == [first.pk]
    assert list(list_occurrences(list_merged(three)).values_list("finding", flat=True)) == [second.pk]
    merge(three, into=one, by=ana)
    outcome = Action.objects.get(undoes=action)
    with pytest.raises(Refused, match="nothing can be undone"):
        undo(outcome, by=ana)  # it would merge one into three again, which is one


def test_comments_stay_whatever_is_undone_and_empty_ones_are_refused(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    domain.comment(finding, " seen on two machines ", by=ana)
    action = domain.decide([finding.pk], decision=Decision.INCONCLUSIVE, by=ana).action
    assert action is not None
    undo(action, by=ana)
    assert [each.text for each in Comment.objects.all()] == ["seen on two machines"]
    for text, word in (("  ", "empty"), ("x" * 20_001, "20,001 characters")):
        with pytest.raises(Refused, match=word):
            domain.comment(finding, text, by=ana)


def test_the_last_deed_of_a_person_is_found_and_undoing_is_none(ana: User, bo: User) -> None:
    first, second, *_ = findings_of(make_validation())
    assert find_last(ana) is None
    one = domain.decide([first.pk], decision=Decision.INCONCLUSIVE, by=ana).action
    two = domain.decide([second.pk], decision=Decision.INCONCLUSIVE, by=ana).action
    domain.assign([second.pk], to=bo, by=bo)
    assert find_last(ana) == two
    assert two is not None
    undo(two, by=ana)
    assert find_last(ana) == one


def test_a_pinboard_is_a_persons_own(ana: User, bo: User) -> None:
    finding, *_ = findings_of(make_validation())
    domain.pin(finding, by=ana)
    domain.pin(finding, by=ana)
    domain.unpin([finding.pk], by=bo)
    assert [(each.owner, each.finding) for each in Pin.objects.all()] == [(ana, finding)]
    domain.unpin([finding.pk], by=ana)
    assert not Pin.objects.exists()


def test_more_evidence_runs_the_validation_again_and_sets_the_finding_aside(ana: User) -> None:
    validation = make_validation()
    first, second, *_ = findings_of(validation)
    outcome = domain.decide(
        [first.pk, second.pk], decision=Decision.NEEDS_EVIDENCE, reason="once more, with steps=4", by=ana
    )
    assert len(outcome.changed) == 2
    first.refresh_from_db()
    second.refresh_from_db()
    assert first.state == "waiting"
    assert first.evidence == second.evidence
    assert first.evidence is not None
    assert (first.evidence.cloned_from, first.evidence.fresh) == (validation, True)


def test_what_cannot_be_run_again_stays_with_its_reason(ana: User) -> None:
    validation = make_validation()
    Validation.objects.filter(pk=validation.pk).update(data="/nowhere/data.jsonl")
    finding, *_ = findings_of(validation)
    outcome = domain.decide([finding.pk], decision=Decision.NEEDS_EVIDENCE, by=ana)
    (skipped,) = outcome.skipped
    assert skipped.reason.startswith(f"{finding.number} cannot be run again: ")
    finding.refresh_from_db()
    assert finding.state == "open"


def test_a_failure_that_a_person_decided_about_is_not_asked_about_each_night(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    domain.decide([finding.pk], decision=Decision.KNOWN, problem=make_problem(), by=ana)
    repeated = findings_of(make_validation())[0]
    assert (repeated.state, repeated.repeats, repeated.regressed) == ("repeated", finding, False)
    third = findings_of(make_validation())[0]
    assert (third.state, third.repeats) == ("repeated", finding)
    newer = make_environment(finding.validation.framework, version="5.25.0")
    elsewhere = findings_of(make_validation(environment=newer))[0]
    assert (elsewhere.state, elsewhere.regressed) == ("open", False)
    assert findings_of(make_validation(settings={"packing": True}))[0].state == "open"


def test_a_failure_after_a_pass_is_a_regression_and_is_asked_about_again(ana: User) -> None:
    finding, *_ = findings_of(make_validation())
    assert not finding.regressed
    domain.decide([finding.pk], decision=Decision.KNOWN, problem=make_problem(), by=ana)
    make_validation(verdicts=passing_verdicts())
    again = findings_of(make_validation(verdicts=failing_verdicts()))[0]
    assert (again.state, again.regressed) == ("open", True)
