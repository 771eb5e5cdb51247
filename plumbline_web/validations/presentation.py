"""How a validation is said: words and shapes of verdicts, and the row that page, API and exports share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from django.utils import timezone

from plumbline_web.validations.enums import State, Status
from plumbline_web.validations.models import Validation

SHAPES: Mapping[str, str] = {
    Status.PASS: "●",
    Status.FAIL: "▲",
    Status.INCONCLUSIVE: "◆",
    Status.ERROR: "■",
    Status.SKIPPED: "○",
    State.QUEUED: "◌",
    State.RUNNING: "▷",
    State.FAILED: "■",
    State.CANCELLED: "×",
    "done": "●",
    "reused": "●",
    "waiting": "○",
}
"""word → its shape; colour is never the only signal"""

STATUS_ORDER = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE, Status.PASS, Status.SKIPPED)
"""from what needs a person most to what needs none"""


@dataclass(frozen=True)
class Count:
    """How many checks ended in one status."""

    status: str
    number: int

    @property
    def shape(self) -> str:
        return SHAPES[self.status]


@dataclass(frozen=True)
class Row:
    """One validation as the list, the API and the exports give it. Times in UTC, durations in seconds."""

    id: str
    number: int
    state: str
    verdict: str | None
    framework: str
    framework_version: str
    model: str
    model_revision: str
    data: str
    profile: str | None
    queue: str
    owner: str
    passed: int
    failed: int
    inconclusive: int
    errors: int
    skipped: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    duration_s: float | None


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Row))


def row(validation: Validation) -> Row:
    """What a list says of a validation; names must have been fetched with it (`with_names()`)."""
    return Row(
        id=validation.number,
        number=validation.pk,
        state=validation.state,
        verdict=validation.verdict or None,
        framework=validation.framework.name,
        framework_version=validation.environment.version,
        model=validation.model.name,
        model_revision=validation.model.revision,
        data=validation.data,
        profile=str(validation.profile) if validation.profile else None,
        queue=validation.queue,
        owner=validation.owner.username,
        passed=validation.passed,
        failed=validation.failed,
        inconclusive=validation.inconclusive,
        errors=validation.errors,
        skipped=validation.skipped,
        created_at=validation.created_at,
        started_at=validation.started_at,
        ended_at=validation.ended_at,
        duration_s=measure_duration(validation),
    )


def word_of(validation: Validation) -> str:
    """The verdict where there is one; the state of a validation that is open, was cancelled, or broke."""
    return validation.verdict if validation.state == State.DONE and validation.verdict else validation.state


def count_statuses(validation: Validation) -> tuple[Count, ...]:
    """How many checks ended how, worst first, without the statuses that none has."""
    numbers = {
        Status.FAIL: validation.failed,
        Status.ERROR: validation.errors,
        Status.INCONCLUSIVE: validation.inconclusive,
        Status.PASS: validation.passed,
        Status.SKIPPED: validation.skipped,
    }
    return tuple(Count(status.value, numbers[status]) for status in STATUS_ORDER if numbers[status])


def measure_duration(validation: Validation) -> float | None:
    """Seconds from the start to the end of a validation that has ended."""
    if validation.started_at is None or validation.ended_at is None:
        return None
    return (validation.ended_at - validation.started_at).total_seconds()


def measure_elapsed(validation: Validation) -> float | None:
    """Seconds since the start, of one that still runs too."""
    if validation.started_at is None:
        return None
    return ((validation.ended_at or timezone.now()) - validation.started_at).total_seconds()


def format_ago(moment: datetime) -> str:
    """3 min ago, 5 h ago, 2 d ago.

    >>> format_ago(timezone.now() - timedelta(minutes=5))
    '5 min ago'
    """
    delta: timedelta = timezone.now() - moment
    seconds = int(delta.total_seconds())
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= length:
            count = abs(seconds) // length
            return f"in {count} {unit}" if seconds < 0 else f"{count} {unit} ago"
    return "soon" if seconds < 0 else "just now"
