"""What is validated: frameworks, their installed environments, models, profiles and the schedules that repeat them."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from plumbline_web.catalog.enums import Trigger


class Framework(models.Model):
    """One row = one training framework that an adapter can run."""

    name = models.CharField(max_length=50, unique=True)
    """the adapter's name"""
    title = models.CharField(max_length=100)
    package = models.CharField(max_length=100)
    """distribution on the package index, whose version an environment carries"""

    def __str__(self) -> str:
        return self.name


class Environment(models.Model):
    """One row = one installed version of a framework, with the packages beside it."""

    framework = models.ForeignKey(Framework, on_delete=models.PROTECT, related_name="environments")
    version = models.CharField(max_length=50)
    digest = models.CharField(max_length=64)
    """SHA-256 of the package list and the Python version"""
    python = models.CharField(max_length=20)
    packages = models.JSONField()
    """package → version"""
    first_seen_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["framework", "digest"], name="environment_once_a_package_list"),
        ]

    def __str__(self) -> str:
        return f"{self.framework.name} {self.version}"


class TrainedModel(models.Model):
    """One row = one checkpoint, as someone named it and with the content that it then had."""

    name = models.CharField(max_length=500)
    """as asked: `tiny:qwen3`, or a path"""
    family = models.CharField(max_length=100)
    """`model_type` of its config"""
    revision = models.CharField(max_length=64)
    """digest of config and weights"""
    parameters = models.BigIntegerField()
    first_seen_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "revision"], name="model_once_a_content")]

    def __str__(self) -> str:
        return self.short_name

    @property
    def short_name(self) -> str:
        """`qwen3` for `tiny:qwen3`; the last directory for a path."""
        return self.name.rstrip("/").rsplit("/", 1)[-1].removeprefix("tiny:")


class Profile(models.Model):
    """One row = one version of a named run spec with its checks: what makes two days' verdicts comparable."""

    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField(default=1)
    data = models.CharField(max_length=500)
    checks = ArrayField(models.CharField(max_length=60), null=True, blank=True)
    """names; null for all"""
    settings = models.JSONField(default=dict)
    """fields of the run spec that differ from its defaults"""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "version"], name="profile_once_a_version")]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Schedule(models.Model):
    """One row = one profile × framework × model that is validated again and again."""

    profile = models.ForeignKey(Profile, on_delete=models.PROTECT, related_name="schedules")
    framework = models.ForeignKey(Framework, on_delete=models.PROTECT, related_name="schedules")
    model = models.CharField(max_length=500)
    trigger = models.CharField(max_length=8, choices=Trigger)
    hour = models.PositiveSmallIntegerField(default=2)
    """of the day in UTC, for the nightly ones"""
    enabled = models.BooleanField(default=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="schedules")
    last_run_at = models.DateTimeField(null=True, blank=True)
    last_release = models.CharField(max_length=50, blank=True)
    """newest version on the package index when it was last looked at"""
    last_error = models.TextField(blank=True)
    """why the last attempt submitted nothing; empty when it did"""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["profile", "framework", "model", "trigger"], name="schedule_once"),
            models.CheckConstraint(condition=models.Q(hour__lt=24), name="schedule_hour_of_a_day"),
        ]
