from __future__ import annotations

from django.db import models


class Verb(models.TextChoices):
    """What is done to environments."""

    CREATE = "create", "build"
    CHECK = "check", "check"
    REMOVE = "remove", "remove"
    EVICT = "evict", "remove what is unused"
