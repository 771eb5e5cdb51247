"""Findings: failing verdicts, and where each stands with the people who decide about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import models
from django.db.models import F, Q

from plumbline_web.accounts.enums import Role
from plumbline_web.validations.enums import Decision, FindingState, Pattern
from plumbline_web.validations.models.validation import Validation
from plumbline_web.validations.models.verdicts import CheckResult

if TYPE_CHECKING:
    from plumbline_web.accounts.models import User


class FindingQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: User | AnonymousUser) -> Self:
        """Whoever is signed in sees every finding, nobody else any."""
        return self if user.is_authenticated and user.has_role(Role.VIEWER) else self.none()

    def with_names(self) -> Self:
        """What a row of a list shows, in one query."""
        return self.select_related(
            *("validation__framework", "validation__environment__framework", "validation__model"),
            *("result", "assignee", "decided_by"),
        ).defer("result__document", "validation__spec", "validation__plan")


class Finding(models.Model):
    """One row = one failing verdict that waits for, or had, a person's decision."""

    validation = models.ForeignKey(Validation, on_delete=models.CASCADE, related_name="findings")
    result = models.OneToOneField(CheckResult, on_delete=models.CASCADE, related_name="finding")
    check_name = models.CharField(max_length=60)
    pattern = models.CharField(max_length=20, choices=Pattern, blank=True)
    silent = models.BooleanField(default=False)
    """the run ended well and its loss was finite: nothing but this check shows the fault"""
    signature = models.CharField(max_length=64, blank=True)
    """of the failure, by `checks.matching.signature`: equal for the same fault seen twice"""
    group = models.CharField(max_length=80, blank=True)
    """findings of one group are one fault: their signature, until a person splits or joins them"""
    regressed = models.BooleanField(default=False)
    """the same wish had passed this check before"""
    repeats = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="repetitions")
    """of one that is `repeated`: the finding that a person decided about"""

    state = models.CharField(max_length=8, choices=FindingState, default=FindingState.OPEN)
    decision = models.CharField(max_length=14, choices=Decision, blank=True)
    reason = models.TextField(blank=True)
    """why it was decided so, in the person's words"""
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="decided_findings"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    evidence = models.ForeignKey(
        Validation, null=True, blank=True, on_delete=models.SET_NULL, related_name="evidence_for", db_index=False
    )
    """of one that waits: the validation that was asked for"""
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="assigned_findings"
    )
    due = models.DateField(null=True, blank=True)
    snoozed_until = models.DateField(null=True, blank=True)
    """not asked about before that day"""
    change_awaited_since = models.DateTimeField(null=True, blank=True)
    """not asked about until its group shows in another environment after that moment"""
    version = models.PositiveIntegerField(default=1)
    """one more with every change: a form that was drawn from an older one is stale"""
    created_at = models.DateTimeField(auto_now_add=True)

    objects = FindingQuerySet.as_manager()

    class Meta:
        indexes = [
            # the overview's counts by pattern
            models.Index(fields=["state", "pattern"], name="finding_by_pattern"),
            models.Index(fields=["-created_at"], name="finding_newest"),
            # the queue, the gravest first
            models.Index(
                F("silent").desc(),
                F("regressed").desc(),
                F("created_at").desc(),
                F("id").desc(),
                condition=Q(state__in=["open", "waiting"]),
                name="finding_queue",
            ),
            # how many are alike, and whether their group was decided about
            models.Index(fields=["group", "-created_at"], name="finding_of_group"),
            # the group that a new finding belongs to
            models.Index(fields=["signature", "-id"], name="finding_by_signature"),
            # what a person found wrong with a check
            models.Index(fields=["check_name", "decision"], name="finding_by_check"),
        ]

    def __str__(self) -> str:
        return self.number

    @property
    def number(self) -> str:
        return f"F-{self.pk}"
