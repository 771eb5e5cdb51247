"""Which findings need a person now: open ones that nobody put off, waived, or waits for evidence of."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from plumbline_web.triage.models import Waiver
from plumbline_web.validations.enums import OPEN, FindingState
from plumbline_web.validations.models import Finding
from plumbline_web.validations.models.findings import FindingQuerySet

PENDING = (FindingState.OPEN, FindingState.WAITING)


def waiver_of(finding: str = "") -> Exists:
    """Whether a waiver is in force; `finding`: path from the queried row to its finding, empty for a finding."""
    return Exists(
        Waiver.objects.filter(
            group=OuterRef(f"{finding}group"),
            framework=OuterRef(f"{finding}validation__framework"),
            until__gt=timezone.localdate(),
            ended_at__isnull=True,
        )
    )


def is_snoozed() -> Q:
    """Put off until a later day, or until the group shows in another environment, which it has not."""
    elsewhere = Finding.objects.filter(
        group=OuterRef("group"), created_at__gt=OuterRef("change_awaited_since")
    ).exclude(validation__environment=OuterRef("validation__environment"))
    return Q(snoozed_until__gt=timezone.localdate()) | Q(Q(change_awaited_since__isnull=False) & ~Exists(elsewhere))


def list_pending(findings: FindingQuerySet) -> FindingQuerySet:
    """Those that need a person now."""
    return (
        findings.filter(state__in=PENDING)
        .exclude(state=FindingState.WAITING, evidence__state__in=OPEN)
        .exclude(is_snoozed())
        .exclude(waiver_of())
    )
