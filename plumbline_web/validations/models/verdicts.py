"""What the checks said: results, and the overview's cells."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from plumbline_web.validations.enums import Pattern, Status
from plumbline_web.validations.models.validation import Validation


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
            # what a check said of one framework and model before: since when it fails, and whether it had passed
            models.Index(fields=["check_name", "framework", "model", "-validation"], name="result_of_cell"),
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
