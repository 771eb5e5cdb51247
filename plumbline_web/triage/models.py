"""Triage: what people did to findings, so that each deed can be undone, and what they said."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from plumbline_web.problems.models import Problem
from plumbline_web.triage.enums import ActionKind, AgendaReason
from plumbline_web.validations.models import Finding


class Meeting(models.Model):
    """One row = one triage meeting, with the agenda that it began with."""

    title = models.CharField(max_length=200)
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="meetings")
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-started_at", "-pk"]

    def __str__(self) -> str:
        return self.title


class AgendaItem(models.Model):
    """One row = one finding that a meeting talks about."""

    meeting = models.ForeignKey(Meeting, on_delete=models.CASCADE, related_name="items")
    finding = models.ForeignKey(Finding, on_delete=models.CASCADE, related_name="agenda_items")
    position = models.PositiveSmallIntegerField()
    reason = models.CharField(max_length=10, choices=AgendaReason)

    class Meta:
        ordering: ClassVar[list[str]] = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["meeting", "finding"], name="agenda_item_once_a_finding"),
            models.UniqueConstraint(fields=["meeting", "position"], name="agenda_item_once_a_position"),
        ]


class Action(models.Model):
    """One row = one deed of one person, on as many findings as it was meant for; never changed, never deleted."""

    kind = models.CharField(max_length=8, choices=ActionKind)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="triage_actions")
    at = models.DateTimeField(auto_now_add=True)
    text = models.TextField()
    """in the past tense: "decided: confirmed, known P-45" """
    undoes = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="undone_by")
    meeting = models.ForeignKey(Meeting, null=True, blank=True, on_delete=models.SET_NULL, related_name="actions")

    class Meta:
        indexes = [
            # a person's last deeds, to undo them
            models.Index(fields=["actor", "-id"], name="action_of_a_person"),
        ]


class Change(models.Model):
    """One row = what an action changed of one finding, both ways."""

    action = models.ForeignKey(Action, on_delete=models.CASCADE, related_name="changes")
    finding = models.ForeignKey(Finding, on_delete=models.CASCADE, related_name="changes")
    before = models.JSONField()
    """column → value, as `changes.COLUMNS` names them; those that changed"""
    after = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["action", "finding"], name="change_once_a_finding")]


class ProblemChange(models.Model):
    """One row = a problem that an action merged into another, or parted from it."""

    action = models.ForeignKey(Action, on_delete=models.CASCADE, related_name="problem_changes")
    problem = models.ForeignKey(Problem, on_delete=models.CASCADE, related_name="merge_changes")
    before = models.ForeignKey(Problem, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    after = models.ForeignKey(Problem, null=True, blank=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["action", "problem"], name="problem_change_once_a_problem")]


class Occurrence(models.Model):
    """One row = a person's word that a finding is a problem, or is known not to be; taken back, never deleted."""

    finding = models.ForeignKey(Finding, on_delete=models.PROTECT, related_name="occurrences")
    problem = models.ForeignKey(Problem, on_delete=models.PROTECT, related_name="occurrences")
    holds = models.BooleanField()
    """False: known not to be it, so that it is not suggested again"""
    stands = models.BooleanField(default=True)
    """False once the word was taken back, by another decision or by undoing it"""
    action = models.ForeignKey(Action, on_delete=models.PROTECT, related_name="occurrences")
    """the deed that said so"""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["finding", "problem"], condition=Q(stands=True), name="occurrence_once"),
        ]
        indexes = [
            # the occurrences of a problem
            models.Index(fields=["problem", "-finding"], condition=Q(stands=True), name="occurrence_of_problem"),
        ]


class OccurrenceChange(models.Model):
    """One row = an occurrence that an action made to stand, or took back."""

    action = models.ForeignKey(Action, on_delete=models.CASCADE, related_name="occurrence_changes")
    occurrence = models.ForeignKey(Occurrence, on_delete=models.PROTECT, related_name="changes")
    stands = models.BooleanField()
    """after the action"""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["action", "occurrence"], name="occurrence_change_once_an_occurrence")
        ]


class Comment(models.Model):
    """One row = what a person said about a finding, as Markdown; it stays whatever is decided or undone."""

    finding = models.ForeignKey(Finding, on_delete=models.CASCADE, related_name="comments")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="triage_comments")
    at = models.DateTimeField(auto_now_add=True)
    text = models.TextField()
    meeting = models.ForeignKey(Meeting, null=True, blank=True, on_delete=models.SET_NULL, related_name="comments")

    class Meta:
        ordering: ClassVar[list[str]] = ["at", "pk"]


class Pin(models.Model):
    """One row = a finding on one person's pinboard."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="pins")
    finding = models.ForeignKey(Finding, on_delete=models.CASCADE, related_name="pins")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "finding"], name="pin_once")]


class Waiver(models.Model):
    """One row = a known failure that is accepted until a day: its group, on one framework, citing its problem."""

    group = models.CharField(max_length=80)
    framework = models.ForeignKey("catalog.Framework", on_delete=models.PROTECT, related_name="waivers")
    problem = models.ForeignKey(Problem, on_delete=models.PROTECT, related_name="waivers")
    until = models.DateField()
    """the first day on which it counts again"""
    reason = models.TextField()
    made_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="waivers")
    made_at = models.DateTimeField(auto_now_add=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="ended_waivers"
    )
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            # whether a finding is waived
            models.Index(
                fields=["group", "framework", "until"], condition=Q(ended_at__isnull=True), name="waiver_in_force"
            ),
        ]
