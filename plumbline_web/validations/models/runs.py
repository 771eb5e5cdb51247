"""Framework runs with their captures and references, shared by the validations that need them."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from plumbline_web.validations.enums import RunRole, RunState
from plumbline_web.validations.models.validation import Validation


class FrameworkRun(models.Model):
    """One row = one execution of a framework with the recorder in front; equal needs of validations share it."""

    need = models.CharField(max_length=64)
    """SHA-256 of all that decides what it records: environment, checkpoint, data content, run spec, steps, and what"""
    framework = models.ForeignKey("catalog.Framework", on_delete=models.PROTECT, related_name="runs")
    environment = models.ForeignKey("catalog.Environment", on_delete=models.PROTECT, related_name="runs")
    model = models.ForeignKey("catalog.TrainedModel", on_delete=models.PROTECT, related_name="runs")
    spec = models.JSONField()
    """the run spec, with paths as this installation has them"""
    steps = ArrayField(models.PositiveIntegerField())
    """captured optimizer steps"""
    modules = models.CharField(max_length=500, blank=True)
    """regular expression of modules whose inputs and outputs are recorded; empty for none"""
    memory = models.BooleanField(default=False)
    """the bytes that are alive are counted, and of tensors only the batch is recorded"""
    full = models.BooleanField(default=False)
    time_limit_s = models.FloatField()
    memory_limit_bytes = models.BigIntegerField(null=True, blank=True)

    state = models.CharField(max_length=10, choices=RunState, default=RunState.QUEUED)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ending = models.CharField(max_length=16, blank=True)
    """completed, failed, timed_out, out_of_memory or cancelled, once it has ended"""
    exit_code = models.IntegerField(null=True, blank=True)
    signal = models.IntegerField(null=True, blank=True)
    elapsed_s = models.FloatField(null=True, blank=True)
    peak_memory_bytes = models.BigIntegerField(null=True, blank=True)
    last_error = models.TextField(blank=True)
    last_output = models.TextField(blank=True)
    unreadable = models.TextField(blank=True)
    """why there is no capture"""
    device = models.CharField(max_length=100, blank=True)
    """what it ran on: "CPU", or the GPU's name"""

    class Meta:
        constraints = [
            # equal needs that are asked for at the same time are captured once
            models.UniqueConstraint(
                fields=["need"], condition=Q(state__in=["queued", "running"]), name="run_once_a_need"
            ),
        ]
        indexes = [
            # reuse of a stored capture
            models.Index(fields=["need", "-ended_at"], name="run_stored", condition=Q(ending="completed")),
        ]


class ValidationRun(models.Model):
    """One row = a framework run's part in a validation."""

    validation = models.ForeignKey(Validation, on_delete=models.CASCADE, related_name="validation_runs")
    run = models.ForeignKey(FrameworkRun, on_delete=models.PROTECT, related_name="validation_runs")
    role = models.CharField(max_length=12, choices=RunRole)
    reused = models.BooleanField(default=False)
    """the run had been asked for by an earlier validation"""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["validation", "role"], name="validation_run_once_a_role")]


class Capture(models.Model):
    """One row = one capture directory, recorded by a framework run here or uploaded; its files lie in the store."""

    run = models.OneToOneField(FrameworkRun, null=True, blank=True, on_delete=models.CASCADE, related_name="capture")
    """null for an uploaded one"""
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="captures"
    )
    digest = models.CharField(max_length=64)
    """SHA-256 over the names and digests of its files"""
    size = models.BigIntegerField()
    framework = models.CharField(max_length=50, blank=True)
    """as its manifest says"""
    steps = ArrayField(models.PositiveIntegerField(), default=list)
    tensors = models.PositiveIntegerField(default=0)
    whole = models.BooleanField(default=True)
    """everything that was to be recorded was; one that lacks something is judged, and never used again"""
    recorded = models.JSONField(default=dict, blank=True)
    """of an uploaded one: what its manifest says of the recorded process, as `origin.Origin`; empty for others"""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["-created_at"], name="capture_newest")]


class CaptureFile(models.Model):
    """One row = one file of a capture."""

    capture = models.ForeignKey(Capture, on_delete=models.CASCADE, related_name="files")
    name = models.CharField(max_length=200)
    artefact = models.ForeignKey("artefacts.Artefact", on_delete=models.PROTECT, related_name="capture_files")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["capture", "name"], name="capture_file_once_a_name")]


class Reference(models.Model):
    """One row = the trusted counterpart of one captured step, cached by all that decides it."""

    key = models.CharField(max_length=64, unique=True)
    """SHA-256 of checkpoint, batch, settings, starting state and the reference's own version"""
    step = models.PositiveIntegerField()
    artefact = models.ForeignKey("artefacts.Artefact", on_delete=models.PROTECT, related_name="references")
    seconds = models.FloatField()
    created_at = models.DateTimeField(auto_now_add=True)


class RunReference(models.Model):
    """One row = the reference of one captured step of a framework run."""

    run = models.ForeignKey(FrameworkRun, on_delete=models.CASCADE, related_name="run_references")
    step = models.PositiveIntegerField()
    reference = models.ForeignKey(
        Reference, null=True, blank=True, on_delete=models.PROTECT, related_name="run_references"
    )
    """null where there is nothing trusted to compare with, and `why_none` says why"""
    why_none = models.TextField(blank=True)
    cached = models.BooleanField(default=False)
    """it had been computed for an earlier run"""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "step"], name="run_reference_once_a_step")]
