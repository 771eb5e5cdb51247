"""What administrators asked of the environments; the environments themselves lie on the disk of a machine."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from plumbline_web.environments.enums import Verb

LONGEST_REQUIREMENT = 300


class Wish(models.Model):
    """One row = one thing that somebody asked to be done to an environment; its job says how far it is."""

    verb = models.CharField(max_length=6, choices=Verb)
    name = models.CharField(max_length=80, blank=True)
    """of the environment; empty for one that is named after its releases, and for what concerns all"""
    framework = models.CharField(max_length=LONGEST_REQUIREMENT, blank=True)
    """a requirement of one release"""
    others = ArrayField(models.CharField(max_length=LONGEST_REQUIREMENT), default=list, blank=True)
    """requirements beside it"""
    python = models.CharField(max_length=5, blank=True)
    """version of Python; empty for the worker's own"""
    days = models.FloatField(null=True, blank=True)
    """of evict: since the last use"""
    said = models.TextField(blank=True)
    """what there was to say in the end"""
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="environment_wishes"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return " ".join((self.framework, *(f"with {other}" for other in self.others))) or self.name
