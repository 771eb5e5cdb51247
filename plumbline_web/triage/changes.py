"""One deed on many findings: locked, told apart from what others did meanwhile, recorded so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.db import transaction
from django.db.models import Field

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.triage.enums import ActionKind
from plumbline_web.triage.models import Action, Change, Meeting
from plumbline_web.validations.domain import Refused
from plumbline_web.validations.enums import FindingState
from plumbline_web.validations.models import Finding

COLUMNS = (
    *("state", "decision", "reason", "decided_by_id", "decided_at", "evidence_id"),
    *("assignee_id", "due", "snoozed_until", "change_awaited_since", "group"),
)
"""What people change of a finding, and what undoing brings back."""

MOST_AT_ONCE = 10_000
"""Findings of one deed."""

Values = Mapping[str, Any]
Changer = Callable[[Finding], Values | str]
"""The new values of some of COLUMNS, or why this finding is left as it is."""


@dataclass(frozen=True)
class Skipped:
    """A finding that was left as it is, and why."""

    finding: Finding
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What a deed did. `action`: None where it changed nothing."""

    action: Action | None
    changed: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]


def check_may_triage(person: User) -> None:
    """Raises Refused for whoever is no triager."""
    if not person.has_role(Role.TRIAGER):
        raise Refused("forbidden", f"deciding needs the role triager, and you are {person.role}; ask an administrator")


def begin(kind: ActionKind, text: str, *, by: User, meeting: Meeting | None = None, **fields: Any) -> Action:
    """The row of a deed; call it in the transaction of its changes."""
    return Action.objects.create(kind=kind, actor=by, text=text, meeting=meeting, **fields)


@transaction.atomic
def change(
    kind: ActionKind,
    text: str,
    findings: Iterable[int],
    changer: Changer,
    *,
    by: User,
    versions: Mapping[int, int] | None = None,
    meeting: Meeting | None = None,
) -> Outcome:
    """Give each finding the values that `changer` names.

    `findings`: keys. `versions`: key → the version that the person saw; one that has changed since is skipped, with
    what happened to it.

    Raises:
        Refused: not a triager, or more than MOST_AT_ONCE findings.
    """
    check_may_triage(by)
    chosen: list[tuple[Finding, Values]] = []
    skipped: list[Skipped] = []
    for finding in lock(findings):
        if versions is not None and versions.get(finding.pk, finding.version) != finding.version:
            skipped.append(Skipped(finding, describe_last_change(finding)))
            continue
        values = changer(finding)
        if isinstance(values, str):
            skipped.append(Skipped(finding, values))
        elif all(getattr(finding, name) == value for name, value in values.items()):
            skipped.append(Skipped(finding, f"{finding.number} is so already"))
        else:
            chosen.append((finding, values))
    action = begin(kind, text, by=by, meeting=meeting) if chosen else None
    if action is not None:
        write(action, chosen)
    return Outcome(action, tuple(finding for finding, _ in chosen), tuple(skipped))


def lock(findings: Iterable[int]) -> list[Finding]:
    """The rows, locked in the order of their keys so that two deeds never wait for each other."""
    keys = sorted(set(findings))
    if len(keys) > MOST_AT_ONCE:
        raise Refused(
            "illegal_state", f"{len(keys):,} findings are more than {MOST_AT_ONCE:,} at once; narrow the filter"
        )
    return list(Finding.objects.select_for_update().filter(pk__in=keys).order_by("pk"))


def write(action: Action, chosen: Iterable[tuple[Finding, Values]]) -> None:
    """Write values to locked findings, with the record of what was there before and an event for each."""
    changes, findings = [], []
    for finding, values in chosen:
        differing = {name: value for name, value in values.items() if getattr(finding, name) != value}
        before = {name: to_json(getattr(finding, name)) for name in differing}
        after = {name: to_json(value) for name, value in differing.items()}
        changes.append(Change(action=action, finding=finding, before=before, after=after))
        for name, value in differing.items():
            setattr(finding, name, value)
        finding.version += 1
        findings.append(finding)
    Change.objects.bulk_create(changes, batch_size=1_000)
    Finding.objects.bulk_update(findings, [*(_plain(name) for name in COLUMNS), "version"], batch_size=500)
    tell(action, findings)


def tell(action: Action, findings: Iterable[Finding]) -> None:
    """An event about each finding."""
    Event.objects.bulk_create(
        (
            Event(
                subject=Subject.FINDING,
                subject_id=finding.pk,
                actor_id=action.actor_id,
                text=action.text,
                data={"action": action.pk, "kind": action.kind},
            )
            for finding in findings
        ),
        batch_size=1_000,
    )


def describe_last_change(finding: Finding) -> str:
    """Who did what to it last: for a person whose page is older than that."""
    last = Change.objects.filter(finding=finding).select_related("action__actor").order_by("-action").first()
    if last is None:
        state = FindingState(finding.state).label
        return f"{finding.number} has changed since the page was drawn: it is {state}; look again"
    actor, at = last.action.actor.username, last.action.at
    return f"{finding.number} has changed since the page was drawn: {actor} {last.action.text} ({at:%H:%M:%S UTC})"


def to_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, (date, datetime)) else value


def from_json(name: str, value: Any) -> Any:
    """A column's value as `to_json` wrote it."""
    field = Finding._meta.get_field(_plain(name))
    assert isinstance(field, Field)  # COLUMNS are columns
    return field.to_python(value)


def _plain(name: str) -> str:
    return name.removesuffix("_id")
