"""What happened to a thing, when, and by whom."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Subject(models.TextChoices):
    VALIDATION = "validation", "validation"
    FINDING = "finding", "finding"
    USER = "user", "user"
    TOKEN = "token", "token"
    SCHEDULE = "schedule", "schedule"
    PROBLEM = "problem", "problem"
    REPORT = "report", "report"
    ENVIRONMENT = "environment", "environment"


class Event(models.Model):
    """One row = one thing that happened; written in the transaction of the change itself, never changed."""

    subject = models.CharField(max_length=16, choices=Subject)
    subject_id = models.BigIntegerField()
    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="events"
    )
    """null for Plumbline itself"""
    text = models.TextField()
    """a sentence in the past tense: "submitted", "cancelled", "step.loss changed from fail to pass" """
    data = models.JSONField(default=dict)

    class Meta:
        indexes = [models.Index(fields=["subject", "subject_id", "at"], name="event_of_a_subject")]
