"""What people do to findings: decide, reject a suggestion, assign, put off, split and join groups, comment, pin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from urllib.parse import urlencode
from uuid import uuid4

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.notifications.domain import notify
from plumbline_web.notifications.enums import Kind
from plumbline_web.problems.models import Problem
from plumbline_web.triage.changes import (
    Outcome,
    Values,
    begin,
    change,
    check_may_triage,
    describe_last_change,
    lock,
    tell,
)
from plumbline_web.triage.enums import ActionKind
from plumbline_web.triage.evidence import ask_again, call_off
from plumbline_web.triage.models import Comment, Meeting, Occurrence, Pin
from plumbline_web.triage.occurrences import follow_merges, say, take_back
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import CONFIRMED, Decision, FindingState
from plumbline_web.validations.models import Finding

NEED_A_REASON = (Decision.NOT_A_PROBLEM, Decision.CHECK_WRONG)

LONGEST_COMMENT = 20_000


@transaction.atomic
def decide(
    findings: Iterable[int],
    *,
    decision: Decision,
    by: User,
    problem: Problem | None = None,
    reason: str = "",
    versions: Mapping[int, int] | None = None,
    meeting: Meeting | None = None,
) -> Outcome:
    """Say what findings are. Whatever was decided about them before is taken back, and stays on record.

    Raises:
        Refused: not a triager; a confirmation without its problem, or a dismissal without its reason.
    """
    check_may_triage(by)
    _check_complete(decision, problem, reason)
    keys = list(findings)
    if decision == Decision.NEEDS_EVIDENCE:
        return _await_evidence(keys, by=by, reason=reason, versions=versions, meeting=meeting)
    root = follow_merges(problem) if problem is not None and decision in CONFIRMED else None
    now = timezone.now()
    named = dict(Occurrence.objects.filter(finding__in=keys, holds=True, stands=True).values_list("finding", "problem"))

    def judge(finding: Finding) -> Values | str:
        if finding.state == FindingState.GONE:
            return f"{finding.number} is gone after a re-judgement; there is nothing to decide"
        is_same = (finding.state, finding.decision, finding.reason) == (FindingState.DECIDED, decision, reason)
        if is_same and named.get(finding.pk) == (root.pk if root else None):
            return f"{finding.number} is so already"
        return {
            "state": FindingState.DECIDED,
            "decision": decision,
            "reason": reason,
            "decided_by_id": by.pk,
            "decided_at": now,
            "evidence_id": None,
            "snoozed_until": None,
            "change_awaited_since": None,
        }

    text = f"decided: {decision.label}{f' {root.number}' if root else ''}"
    outcome = change(ActionKind.DECIDE, text, keys, judge, by=by, versions=versions, meeting=meeting)
    if outcome.action is not None:
        take_back(outcome.action, outcome.changed, problem=root)
        if root is not None:
            say(outcome.action, outcome.changed, problem=root, holds=True)
    return outcome


@transaction.atomic
def reject(finding: Finding, *, problem: Problem, by: User) -> Outcome:
    """Say that a finding is known not to be a problem: it is not suggested again.

    Raises:
        Refused: not a triager, or the finding was decided to be just that problem.
    """
    check_may_triage(by)
    (locked,) = lock([finding.pk])
    root = follow_merges(problem)
    standing = Occurrence.objects.filter(finding=locked, problem=root, stands=True).first()
    if standing is not None and standing.holds:
        raise Refused("illegal_state", f"{locked.number} was decided to be {root.number}; decide it anew instead")
    if standing is not None:
        return Outcome(None, (), ())
    action = begin(ActionKind.REJECT, f"turned {root.number} down", by=by)
    say(action, [locked], problem=root, holds=False)
    tell(action, [locked])
    return Outcome(action, (locked,), ())


def assign(findings: Iterable[int], *, to: User | None, by: User, versions: Mapping[int, int] | None = None) -> Outcome:
    """Give findings to a person who may decide about them, or to nobody."""
    if to is not None and not (to.is_active and to.has_role(Role.TRIAGER)):
        raise Refused("illegal_state", f"{to.username} cannot decide about findings; assign a triager")
    text = f"assigned to {to.username}" if to is not None else "assigned to nobody"
    values = {"assignee_id": to.pk if to is not None else None}
    with transaction.atomic():
        outcome = change(ActionKind.ASSIGN, text, findings, lambda finding: values, by=by, versions=versions)
        if to is not None and outcome.changed:
            _tell_assignee(to, outcome.changed, by=by)
    return outcome


def set_due(findings: Iterable[int], *, due: date | None, by: User) -> Outcome:
    """The day by which findings should be decided about, or none."""
    text = f"due on {due}" if due else "no longer due on a day"
    return change(ActionKind.DATE, text, findings, lambda finding: {"due": due}, by=by)


def snooze(findings: Iterable[int], *, until: date | None, by: User) -> Outcome:
    """Put findings off until a day; until they show in another environment where there is none.

    Raises:
        Refused: not a triager, or a day that is not to come.
    """
    if until is not None and until <= timezone.localdate():
        raise Refused("illegal_state", f"{until} is not to come; snooze until a later day")
    now = None if until is not None else timezone.now()

    def put_off(finding: Finding) -> Values | str:
        if finding.state not in (FindingState.OPEN, FindingState.WAITING):
            return f"{finding.number} is {FindingState(finding.state).label}; only what is open can be put off"
        return {"snoozed_until": until, "change_awaited_since": now}

    text = f"snoozed until {until}" if until else "snoozed until it shows in another environment"
    return change(ActionKind.SNOOZE, text, findings, put_off, by=by)


def wake(findings: Iterable[int], *, by: User) -> Outcome:
    """Take snoozed findings up again."""
    values = {"snoozed_until": None, "change_awaited_since": None}
    return change(ActionKind.SNOOZE, "taken up again", findings, lambda finding: values, by=by)


@transaction.atomic
def split(findings: Iterable[int], *, by: User) -> Outcome:
    """Part findings from those that look alike: they become a group of their own.

    Raises:
        Refused: not a triager; findings of several groups, or all of one.
    """
    check_may_triage(by)
    chosen = lock(findings)
    groups = {finding.group for finding in chosen}
    if len(groups) != 1:
        raise Refused("illegal_state", "findings of several groups cannot be split off together; choose those of one")
    (group,) = groups
    if not Finding.objects.filter(group=group).exclude(pk__in=[finding.pk for finding in chosen]).exists():
        raise Refused("illegal_state", "these are all findings of their group; leave out those that are something else")
    values = {"group": f"{group.split('#')[0]}#{uuid4().hex[:12]}"}
    keys = [finding.pk for finding in chosen]
    return change(ActionKind.SPLIT, f"split {len(keys)} off their group", keys, lambda finding: values, by=by)


@transaction.atomic
def join(findings: Iterable[int], *, by: User) -> Outcome:
    """Make one group of the groups that findings belong to: all their members, those not chosen too.

    Raises:
        Refused: not a triager, or they are of one group already.
    """
    check_may_triage(by)
    keys = list(findings)
    groups = list(Finding.objects.filter(pk__in=keys).order_by("group").values_list("group", flat=True).distinct())
    if len(groups) < 2:
        raise Refused("illegal_state", "these are of one group already; choose findings of several")
    first = Finding.objects.filter(pk__in=keys).order_by("pk").values_list("group", flat=True)[0]
    members = Finding.objects.filter(group__in=groups).exclude(group=first).values_list("pk", flat=True)
    text = f"joined {len(groups)} groups"
    return change(ActionKind.JOIN, text, list(members), lambda finding: {"group": first}, by=by)


@transaction.atomic
def comment(finding: Finding, text: str, *, by: User, meeting: Meeting | None = None) -> Comment:
    """Say something about a finding, as Markdown.

    Raises:
        Refused: not a triager, nothing said, or too much.
    """
    check_may_triage(by)
    said = text.strip()
    if not said:
        raise Refused("illegal_state", "the comment is empty; write something")
    if len(said) > LONGEST_COMMENT:
        raise Refused(
            "illegal_state", f"the comment has {len(said):,} characters; at most {LONGEST_COMMENT:,} are kept"
        )
    return Comment.objects.create(finding=finding, author=by, text=said, meeting=meeting)


def pin(finding: Finding, *, by: User) -> None:
    """Put a finding on a person's own pinboard; pinning twice is pinning once."""
    Pin.objects.get_or_create(owner=by, finding=finding)


def unpin(findings: Iterable[int], *, by: User) -> None:
    Pin.objects.filter(owner=by, finding__in=list(findings)).delete()


def _tell_assignee(person: User, findings: Sequence[Finding], *, by: User) -> None:
    """One message, however many findings."""
    first, more = findings[0], len(findings) - 1
    named = f"{first.number} {first.check_name}{f' and {more:,} more' if more else ''}"
    queue = f"{reverse('finding-list')}?{urlencode({'assignee': person.username})}"
    notify(
        Kind.ASSIGNMENT,
        about=first,
        text=f"{by.username} assigned {named} to you",
        address=queue if more else reverse("finding-detail", args=[first.pk]),
        to=[person],
        by=by,
    )


def _check_complete(decision: Decision, problem: Problem | None, reason: str) -> None:
    if decision in CONFIRMED and problem is None:
        raise Refused("illegal_state", f"“{decision.label}” names no problem; choose one, such as P-45, or make it")
    if decision in NEED_A_REASON and not reason.strip():
        raise Refused("illegal_state", f"“{decision.label}” has no reason; say why, so that others can follow")


def _await_evidence(
    findings: Sequence[int],
    *,
    by: User,
    reason: str,
    versions: Mapping[int, int] | None,
    meeting: Meeting | None,
) -> Outcome:
    """Ask for fresh runs, and set the findings aside until those have ended."""
    asked = ask_again(findings, versions=versions, by=by)

    def wait(finding: Finding) -> Values | str:
        if finding.pk in asked.refused:
            return asked.refused[finding.pk]
        if finding.pk not in asked.validations:
            return describe_last_change(finding)
        return {
            "state": FindingState.WAITING,
            "decision": Decision.NEEDS_EVIDENCE,
            "reason": reason,
            "decided_by_id": by.pk,
            "decided_at": timezone.now(),
            "evidence_id": asked.validations[finding.pk].pk,
        }

    text = f"decided: {Decision.NEEDS_EVIDENCE.label}"
    outcome = change(ActionKind.DECIDE, text, findings, wait, by=by, versions=versions, meeting=meeting)
    call_off(asked, kept=outcome.changed, by=by)
    if outcome.action is not None:
        take_back(outcome.action, outcome.changed, problem=None)
    return outcome
