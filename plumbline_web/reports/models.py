"""Bug reports for those who own a fault, and the runs of their scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from plumbline_web.accounts.enums import Role
from plumbline_web.reports.enums import Kind, Purpose, ReportState, RunState, Tracker, UpstreamState

if TYPE_CHECKING:
    from plumbline_web.accounts.models import User


class ReportQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: User | AnonymousUser) -> Self:
        """Whoever is signed in sees every report, nobody else any."""
        return self if user.is_authenticated and user.has_role(Role.VIEWER) else self.none()

    def with_subjects(self) -> Self:
        """With what each is about."""
        return self.select_related(
            "problem", "finding__result", "finding__validation__environment__framework", "finding__validation__model"
        ).defer("problem__search")


class Report(models.Model):
    """One row = one bug report about a problem or a finding, as a person left it."""

    problem = models.ForeignKey(
        "problems.Problem", null=True, blank=True, on_delete=models.PROTECT, related_name="reports"
    )
    finding = models.ForeignKey(
        "validations.Finding", null=True, blank=True, on_delete=models.PROTECT, related_name="reports"
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="reports")
    """who began it"""
    tracker = models.CharField(max_length=14, choices=Tracker)
    project = models.URLField(max_length=300, blank=True)
    """address of the project whose tracker it is for; empty for plain text"""
    title = models.CharField(max_length=300)
    body = models.TextField()
    """Markdown, with marks that `rendering.py` replaces"""
    script = models.TextField(blank=True)
    """the reproducer; empty where there is none yet"""
    generated = models.TextField(blank=True)
    """the reproducer as Plumbline wrote it; a script that differs is a person's"""
    kept = ArrayField(models.CharField(max_length=8, choices=Kind), default=list, blank=True)
    """what someone ticked to be left in"""
    state = models.CharField(max_length=8, choices=ReportState, default=ReportState.DRAFT)
    verified_by = models.ForeignKey("ScriptRun", null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    """the run that showed the fault; null in a draft"""
    upstream_url = models.URLField(max_length=500, blank=True)
    upstream_state = models.CharField(max_length=6, choices=UpstreamState, blank=True, default=UpstreamState.UNKNOWN)
    upstream_at = models.DateTimeField(null=True, blank=True)
    """when the state upstream was last looked at, by a person or the schedule"""
    upstream_error = models.TextField(blank=True)
    """why it could not be fetched; empty when it could"""
    version = models.PositiveIntegerField(default=1)
    """one more with every change, so that two people who edit at once lose nothing"""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = ReportQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(problem__isnull=False) | Q(finding__isnull=False), name="report_has_its_subject"
            ),
            models.CheckConstraint(
                condition=Q(state=ReportState.DRAFT) | Q(verified_by__isnull=False), name="report_was_shown"
            ),
        ]
        indexes = [
            # the list, newest first, by state
            models.Index(fields=["state", "-updated_at"], name="report_by_state"),
            models.Index(fields=["-updated_at", "-id"], name="report_newest"),
        ]

    def __str__(self) -> str:
        return self.number

    @property
    def number(self) -> str:
        return f"R-{self.pk}"

    @property
    def is_generated(self) -> bool:
        """Whether the script is as Plumbline wrote it."""
        return bool(self.script) and self.script == self.generated


class ScriptRun(models.Model):
    """One row = one run of a report's script, as the script then stood, in one environment."""

    report = models.ForeignKey(Report, on_delete=models.CASCADE, related_name="runs")
    purpose = models.CharField(max_length=6, choices=Purpose)
    script = models.TextField()
    digest = models.CharField(max_length=64)
    """SHA-256 of the script"""
    environment = models.CharField(max_length=80, blank=True)
    """name of an environment; empty for the framework's own on the worker"""
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="script_runs"
    )
    """null for the schedule"""
    approved = models.BooleanField(default=False)
    """an administrator asked for it: the script may be run again as it stands"""
    state = models.CharField(max_length=8, choices=RunState, default=RunState.QUEUED)
    python = models.CharField(max_length=20, blank=True)
    packages = models.JSONField(default=dict, blank=True)
    """package → version in the Python that ran it"""
    device = models.CharField(max_length=100, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    ending = models.CharField(max_length=16, blank=True)
    """completed, failed, timed_out, out_of_memory or cancelled, once it has ended"""
    output = models.TextField(blank=True)
    verdict = models.TextField(blank=True)
    """what the run says, in a sentence"""
    shows = models.BooleanField(null=True, blank=True)
    """whether it shows the fault; null where it says nothing about it"""
    elapsed_s = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            # two clicks are one run
            models.UniqueConstraint(
                fields=["report"], condition=Q(state__in=["queued", "running"]), name="script_run_once_at_a_time"
            ),
        ]
        indexes = [
            # which environments a script was run in already
            models.Index(fields=["report", "digest", "environment"], name="script_run_of_script"),
        ]

    @property
    def is_open(self) -> bool:
        return self.state in (RunState.QUEUED, RunState.RUNNING)
