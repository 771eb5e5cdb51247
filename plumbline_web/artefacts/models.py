"""Files by their content: captures, references, logs."""

from __future__ import annotations

from django.db import models


class Artefact(models.Model):
    """One row = one file content that is, or was, in the store; its key is the content's SHA-256 in hex."""

    digest = models.CharField(primary_key=True, max_length=64)
    size = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    missing_since = models.DateTimeField(null=True, blank=True)
    """when it was first found to be gone from the disk, or changed there; null while it is whole"""

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(size__gte=0), name="artefact_size_not_negative")]
