from __future__ import annotations

from django.db import models


class Trigger(models.TextChoices):
    """When a schedule submits."""

    NIGHTLY = "nightly", "every night"
    RELEASE = "release", "on a new release of the framework's package"
