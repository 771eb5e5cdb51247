"""What a framework was asked for and cannot do."""

from __future__ import annotations

from django.db import models


class Refusal(models.Model):
    """One row = one wish that was refused before anything ran, kept because its asker wants it on the overview."""

    framework = models.ForeignKey("catalog.Framework", on_delete=models.CASCADE, related_name="refusals")
    model = models.CharField(max_length=500)
    """as asked"""
    settings = models.JSONField()
    """fields of the run spec that differ from its defaults, as asked"""
    sentence = models.TextField()
    at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["framework", "model", "settings"], name="refusal_once_a_wish"),
        ]
