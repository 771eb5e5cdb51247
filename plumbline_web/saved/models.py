"""Saved views: filters of lists that have a name."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.conf import settings
from django.db import models
from django.db.models import Index, Q, UniqueConstraint
from django.urls import reverse

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User


class Listing(models.TextChoices):
    """The lists that have saved views; each value is the name of the list's address."""

    PROBLEMS = "problem-list", "problems"
    VALIDATIONS = "validation-list", "validations"
    FINDINGS = "finding-list", "findings"


class SavedViewQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: User) -> Self:
        """One's own, and those that others share."""
        return self.filter(Q(owner=user) | Q(is_shared=True))


class SavedView(models.Model):
    """One row = one filter and order of one list, under a name; the address stays the state, this only keeps it."""

    listing = models.CharField(max_length=20, choices=Listing)
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=1_000)
    """of the address, without the page's number"""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views")
    is_shared = models.BooleanField(default=False)
    """the whole team sees it"""
    created_at = models.DateTimeField(auto_now_add=True)

    objects = SavedViewQuerySet.as_manager()

    class Meta:
        ordering: ClassVar[list[str]] = ["name", "pk"]
        constraints = [UniqueConstraint(fields=["owner", "listing", "name"], name="saved_view_once_a_name")]
        indexes: ClassVar[list[Index]] = [
            # the head of a list: what the team shares; one's own are found by the constraint's index
            Index(fields=["listing", "name"], condition=Q(is_shared=True), name="saved_view_shared"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        return f"{reverse(self.listing)}?{self.query}" if self.query else reverse(self.listing)

    def is_changeable_by(self, user: User) -> bool:
        """Its owner's, and an administrator's where the team sees it."""
        return self.owner_id == user.pk or (self.is_shared and user.has_role(Role.ADMINISTRATOR))
