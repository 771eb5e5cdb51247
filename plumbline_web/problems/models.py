"""The problem catalogue: faults in some software, and groups of them that are the same fault again."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.contrib.auth.models import AnonymousUser
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector, SearchVectorField
from django.db import models
from django.db.models import BaseConstraint, CheckConstraint, F, Index, Q

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.problems.enums import Confidence, OnCpu, Provenance, UpstreamStatus
from plumbline_web.validations.enums import Pattern

LANGUAGE = "english"
"""of the words that a search stems"""


class ProblemQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: User | AnonymousUser) -> Self:
        """Whoever is signed in sees every problem, nobody else any."""
        return self if user.is_authenticated and user.has_role(Role.VIEWER) else self.none()


class Problem(models.Model):
    """One row = one fault in some software, in our own words."""

    slug = models.SlugField(max_length=120, unique=True)
    title = models.CharField(max_length=300)
    framework = models.CharField(max_length=60)
    """where the fault sits; a name of the catalogue, which knows more of them than there are adapters"""
    component = models.CharField(max_length=120)
    pattern = models.CharField(max_length=20, choices=Pattern)
    stage = models.CharField(max_length=60)
    silent = models.BooleanField()
    """training goes on without an error, with a wrong loss, gradient, datum, weight or logged value"""
    symptom = models.TextField()
    root_cause = models.TextField()
    fix = models.TextField(blank=True)
    status = models.CharField(max_length=20, choices=UpstreamStatus)
    first_seen = models.CharField(max_length=10)
    """ISO date as far as it is known: year and month, or with the day"""
    affected = models.TextField(blank=True)
    fixed_in = models.TextField(blank=True)
    url = models.URLField(max_length=500, blank=True)
    """where it is reported upstream; empty where it is not yet"""
    related_urls = ArrayField(models.URLField(max_length=500), default=list, blank=True)
    caught_by = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    """kinds of checks that should see it"""
    cpu_reproducible = models.CharField(max_length=5, choices=OnCpu)
    shows_in_release = models.TextField(blank=True)
    confidence = models.CharField(max_length=6, choices=Confidence)
    affected_spec = models.JSONField(default=list, blank=True)
    """ranges of released packages (PEP 440) with their sources; empty: unknown, never "not affected" """
    provenance = models.CharField(max_length=12, choices=Provenance, default=Provenance.IMPORTED)
    shipped = models.JSONField(null=True, blank=True)
    """the fields as the catalogue last had them: where a column differs, a person changed it. Null for a problem of
    this installation alone"""
    merged_into = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="merged")
    """the problem that this one turned out to be; its occurrences stay its own, and are shown there"""
    version = models.PositiveIntegerField(default=1)
    """one more with every change, so that two people who change it at once lose nothing"""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    search = models.GeneratedField(
        expression=SearchVector("title", weight="A", config=LANGUAGE)
        + SearchVector("symptom", weight="B", config=LANGUAGE)
        + SearchVector("root_cause", "fix", weight="C", config=LANGUAGE)
        + SearchVector("component", "affected", "fixed_in", weight="D", config=LANGUAGE),
        output_field=SearchVectorField(),
        db_persist=True,
    )
    # The last of all columns: below it, `models` is the column and no longer Django's module.
    models = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    """families that are involved; empty where it is general"""

    objects = ProblemQuerySet.as_manager()

    class Meta:
        ordering: ClassVar[list[str]] = ["pk"]
        indexes: ClassVar[list[Index]] = [
            GinIndex(fields=["search"], name="problem_by_words"),
            GinIndex(fields=["models"], name="problem_by_model"),
            GinIndex(fields=["caught_by"], name="problem_by_kind_of_check"),
            GinIndex(fields=["affected_spec"], opclasses=["jsonb_path_ops"], name="problem_by_package"),
            Index(fields=["-first_seen", "-id"], name="problem_newest"),
            # facets in the list's own order: the newest of an upstream state, a provenance, a component
            Index(fields=["status", "-first_seen", "-id"], name="problem_by_status"),
            Index(fields=["provenance", "-first_seen", "-id"], name="problem_by_provenance"),
            Index(fields=["component", "-first_seen", "-id"], name="problem_by_component"),
            # the matrices are counted in these two alone
            Index(fields=["framework", "pattern"], include=["silent"], name="problem_of_framework"),
            Index(fields=["pattern", "stage"], include=["silent"], name="problem_of_pattern"),
            # whether any changed: what is kept of the catalogue is good until then
            Index(fields=["-updated_at", "-id"], name="problem_by_change"),
        ]
        constraints: ClassVar[list[BaseConstraint]] = [
            CheckConstraint(
                condition=Q(merged_into__isnull=True) | ~Q(merged_into=F("id")), name="problem_not_merged_with_itself"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.slug}"

    @property
    def number(self) -> str:
        return f"P-{self.pk}"


class Recurrence(models.Model):
    """One row = one fault that was made again and again, in other frameworks or models."""

    name = models.CharField(max_length=200, unique=True)
    problems = models.ManyToManyField(Problem, related_name="recurrences")
    shipped = models.BooleanField(default=False)
    """part of the catalogue, whose problems loading adds and never takes away"""

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]

    def __str__(self) -> str:
        return self.name
