from __future__ import annotations

from django.db import models


class Kind(models.TextChoices):
    """What people are told of."""

    SILENT = "silent", "new silent failure"
    REGRESSION = "regression", "regression"
    ASSIGNMENT = "assignment", "assignment"
    UPSTREAM = "upstream", "upstream change"


class DeliveryState(models.TextChoices):
    WAITING = "waiting", "waiting"
    DELIVERED = "delivered", "delivered"
    FAILED = "failed", "failed"
    """given up after the last attempt"""
