"""Training curves: one number a step, stored in chunks of float64."""

from __future__ import annotations

from django.db import models

CHUNK_POINTS = 4096


class Series(models.Model):
    """One row = one quantity of one framework run, over its optimizer steps."""

    run = models.ForeignKey("validations.FrameworkRun", on_delete=models.CASCADE, related_name="series")
    name = models.CharField(max_length=60)
    """loss, grad_norm or learning_rate; tokens, samples or seconds since training began, for the other axes"""
    points = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="series_once_a_run")]


class Chunk(models.Model):
    """One row = up to 4,096 consecutive points of a series."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, related_name="chunks")
    number = models.PositiveIntegerField()
    steps = models.BinaryField()
    """little-endian int64"""
    values = models.BinaryField()
    """little-endian float64, non-finite ones among them"""
    count = models.PositiveIntegerField()
    minimum = models.FloatField(null=True, blank=True)
    """of the finite values; null where there is none"""
    maximum = models.FloatField(null=True, blank=True)
    nonfinite = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "number"], name="chunk_once_a_number")]
