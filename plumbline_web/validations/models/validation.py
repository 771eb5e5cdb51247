"""The validation: what was asked for, how far it is, and what came of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce

from plumbline_web.jobs.enums import Queue
from plumbline_web.validations.enums import State, Status
from plumbline_web.validations.querysets import ValidationQuerySet

if TYPE_CHECKING:
    from plumbline_web.validations.models.runs import FrameworkRun, ValidationRun


class Validation(models.Model):
    """One row = one framework × model × settings × set of checks, asked for by someone: the unit that is queued."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="validations")
    framework = models.ForeignKey("catalog.Framework", on_delete=models.PROTECT, related_name="validations")
    environment = models.ForeignKey("catalog.Environment", on_delete=models.PROTECT, related_name="validations")
    model = models.ForeignKey("catalog.TrainedModel", on_delete=models.PROTECT, related_name="validations")
    profile = models.ForeignKey(
        "catalog.Profile", null=True, blank=True, on_delete=models.PROTECT, related_name="validations"
    )
    schedule = models.ForeignKey(
        "catalog.Schedule", null=True, blank=True, on_delete=models.SET_NULL, related_name="validations"
    )
    cloned_from = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="clones")
    pushed = models.ForeignKey(
        "Capture", null=True, blank=True, on_delete=models.PROTECT, related_name="judged_in", db_index=False
    )
    """the uploaded capture that is judged; null where the framework was run here"""
    data = models.CharField(max_length=500)
    """as asked: a path, or the name of a sample that ships"""
    checks = ArrayField(models.CharField(max_length=60), null=True, blank=True)
    """as asked: names, null for all"""
    settings = models.JSONField(default=dict)
    """as asked: fields of the run spec that were given, typed"""
    inject = models.CharField(max_length=60, blank=True)
    """slug of a fault to inject"""
    full = models.BooleanField(default=False)
    """whole tensors instead of sketches"""
    fresh = models.BooleanField(default=False)
    """run the framework even where an equal capture is stored"""
    time_limit_s = models.FloatField()
    memory_limit_bytes = models.BigIntegerField(null=True, blank=True)
    queue = models.CharField(max_length=4, choices=Queue, default=Queue.CPU)
    spec = models.JSONField()
    """the whole run spec that followed"""
    plan = models.JSONField()
    """runs with the checks that read them, checks that are skipped and why"""

    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    phase = models.CharField(max_length=60, blank=True)
    """what it is at, or waits for"""
    fraction = models.FloatField(default=0.0)
    error = models.TextField(blank=True)
    """why it failed or what its reader should do"""
    warnings = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=100, blank=True)
    version = models.PositiveIntegerField(default=1)
    """rises with every change of state: a form that was drawn from an older one is stale"""

    verdict = models.CharField(max_length=12, choices=Status, blank=True)
    """of all checks together: the worst; empty until it is done"""
    passed = models.PositiveSmallIntegerField(default=0)
    failed = models.PositiveSmallIntegerField(default=0)
    inconclusive = models.PositiveSmallIntegerField(default=0)
    errors = models.PositiveSmallIntegerField(default=0)
    skipped = models.PositiveSmallIntegerField(default=0)

    runs: models.ManyToManyField[FrameworkRun, ValidationRun] = models.ManyToManyField(
        "FrameworkRun", through="ValidationRun", related_name="validations"
    )

    objects = ValidationQuerySet.as_manager()

    class Meta:
        indexes = [
            # the list, newest first, by each of its facets
            models.Index(fields=["-created_at", "-id"], name="validation_newest"),
            models.Index(fields=["framework", "-created_at"], name="validation_by_framework"),
            models.Index(fields=["model", "-created_at"], name="validation_by_model"),
            models.Index(fields=["owner", "-created_at"], name="validation_by_owner"),
            models.Index(fields=["verdict", "-created_at"], name="validation_by_verdict"),
            models.Index(fields=["profile", "-created_at"], name="validation_by_profile"),
            # the list in its other orders
            models.Index(fields=["-failed", "-created_at", "-id"], name="validation_by_failures"),
            models.Index(
                Coalesce(F("ended_at") - F("started_at"), Value(timedelta(0))).desc(),
                F("id").desc(),
                name="validation_by_duration",
            ),
            # what is running now: the overview
            models.Index(
                fields=["state", "-created_at"], name="validation_open", condition=Q(state__in=["queued", "running"])
            ),
            # what an uploaded capture was judged as
            models.Index(fields=["pushed"], name="validation_pushed", condition=Q(pushed__isnull=False)),
        ]
        constraints = [
            # a double submit is one validation
            models.UniqueConstraint(
                fields=["owner", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="validation_once_a_key",
            ),
        ]

    def __str__(self) -> str:
        return self.number

    @property
    def number(self) -> str:
        return f"V-{self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in (State.QUEUED, State.RUNNING)
