"""Validations, the framework runs and captures they share, and what the checks said."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce

from plumbline_web.jobs.enums import Queue
from plumbline_web.validations.enums import FindingState, Pattern, RunRole, RunState, State, Status
from plumbline_web.validations.querysets import ValidationQuerySet


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


class FrameworkRun(models.Model):
    """One row = one execution of a framework with the recorder in front; equal needs of validations share it."""

    need = models.CharField(max_length=64)
    """SHA-256 of all that decides what it records: environment, checkpoint, data content, run spec, steps, modules"""
    framework = models.ForeignKey("catalog.Framework", on_delete=models.PROTECT, related_name="runs")
    environment = models.ForeignKey("catalog.Environment", on_delete=models.PROTECT, related_name="runs")
    model = models.ForeignKey("catalog.TrainedModel", on_delete=models.PROTECT, related_name="runs")
    spec = models.JSONField()
    """the run spec, with paths as this installation has them"""
    steps = ArrayField(models.PositiveIntegerField())
    """captured optimizer steps"""
    modules = models.CharField(max_length=500, blank=True)
    """regular expression of modules whose inputs and outputs are recorded; empty for none"""
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


class CheckResult(models.Model):
    """One row = one verdict of one check on one validation; a re-judgement adds a row and supersedes the old one."""

    validation = models.ForeignKey(Validation, on_delete=models.CASCADE, related_name="results")
    framework = models.ForeignKey("catalog.Framework", on_delete=models.PROTECT, related_name="results")
    environment = models.ForeignKey("catalog.Environment", on_delete=models.PROTECT, related_name="results")
    model = models.ForeignKey("catalog.TrainedModel", on_delete=models.PROTECT, related_name="results")
    profile = models.ForeignKey(
        "catalog.Profile", null=True, blank=True, on_delete=models.PROTECT, related_name="results"
    )
    check_name = models.CharField(max_length=60)
    position = models.PositiveSmallIntegerField()
    """reading order within the validation"""
    status = models.CharField(max_length=12, choices=Status)
    sentence = models.TextField()
    pattern = models.CharField(max_length=20, choices=Pattern, blank=True)
    first_wrong = models.CharField(max_length=300, blank=True)
    value = models.FloatField(null=True, blank=True)
    """of the measurement nearest to, or furthest beyond, its threshold"""
    threshold = models.FloatField(null=True, blank=True)
    detection_limit = models.FloatField(null=True, blank=True)
    elapsed_s = models.FloatField(default=0.0)
    document = models.JSONField()
    """the whole verdict as docs/json.md describes it: measurements, evidence, limits, shared code"""
    plumbline = models.CharField(max_length=20)
    """version that judged"""
    judged_at = models.DateTimeField(auto_now_add=True)
    superseded_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["validation", "check_name"],
                condition=Q(superseded_at__isnull=True),
                name="result_current_once_a_check",
            ),
        ]
        indexes = [
            # a check's record over time
            models.Index(fields=["check_name", "status", "-judged_at"], name="result_of_check"),
        ]


class Finding(models.Model):
    """One row = one failing verdict that waits for, or had, a person's decision."""

    validation = models.ForeignKey(Validation, on_delete=models.CASCADE, related_name="findings")
    result = models.OneToOneField(CheckResult, on_delete=models.CASCADE, related_name="finding")
    check_name = models.CharField(max_length=60)
    pattern = models.CharField(max_length=20, choices=Pattern, blank=True)
    silent = models.BooleanField(default=False)
    """the run ended well and its loss was finite: nothing but this check shows the fault"""
    state = models.CharField(max_length=8, choices=FindingState, default=FindingState.OPEN)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            # the overview's counts by pattern
            models.Index(fields=["state", "pattern"], name="finding_by_pattern"),
            models.Index(fields=["-created_at"], name="finding_newest"),
        ]


class Cell(models.Model):
    """One row = one profile × environment × model of the overview: its latest verdicts, kept as validations end."""

    framework = models.ForeignKey("catalog.Framework", on_delete=models.PROTECT, related_name="cells")
    environment = models.ForeignKey("catalog.Environment", on_delete=models.PROTECT, related_name="cells")
    model = models.ForeignKey("catalog.TrainedModel", on_delete=models.PROTECT, related_name="cells")
    profile = models.ForeignKey(
        "catalog.Profile", null=True, blank=True, on_delete=models.PROTECT, related_name="cells"
    )
    """null for validations that follow no profile"""
    latest = models.ForeignKey(Validation, on_delete=models.CASCADE, related_name="latest_of")
    conclusive = models.ForeignKey(
        Validation, null=True, blank=True, on_delete=models.SET_NULL, related_name="conclusive_of"
    )
    """the latest that ended in pass or fail"""
    last_good = models.ForeignKey(
        Validation, null=True, blank=True, on_delete=models.SET_NULL, related_name="last_good_of"
    )
    first_bad = models.ForeignKey(
        Validation, null=True, blank=True, on_delete=models.SET_NULL, related_name="first_bad_of"
    )
    """the first failure after `last_good`; null while the latest conclusive verdict is a pass"""
    count = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["profile", "environment", "model"], nulls_distinct=False, name="cell_once"),
        ]
