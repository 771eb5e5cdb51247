from __future__ import annotations

from django.db import models

from workers import queues


class Kind(models.TextChoices):
    """What a job does."""

    CAPTURE = "capture", "framework run"
    REFERENCE = "reference", "float64 reference"
    JUDGE = "judge", "judging"
    REPRODUCE = "reproduce", "script of a report"
    ENVIRONMENT = "environment", "environment"


class Queue(models.TextChoices):
    CPU = queues.CPU, "CPU"
    GPU = queues.GPU, "GPU"


class JobState(models.TextChoices):
    """A job's life; `jobs/states.py` has the moves."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"
