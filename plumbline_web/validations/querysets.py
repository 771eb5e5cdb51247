"""Access and annotations of validations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django.contrib.auth.models import AnonymousUser
from django.db import models

from plumbline_web.accounts.enums import Role

if TYPE_CHECKING:
    from plumbline_web.accounts.models import User


class ValidationQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: User | AnonymousUser) -> Self:
        """One team, one house: whoever is signed in sees every validation, nobody else any."""
        return self if user.is_authenticated and user.has_role(Role.VIEWER) else self.none()

    def changeable_by(self, user: User | AnonymousUser) -> Self:
        """Those that the person may cancel, retry or judge again: own ones, and all for a triager."""
        if not user.is_authenticated or not user.has_role(Role.SUBMITTER):
            return self.none()
        return self if user.has_role(Role.TRIAGER) else self.filter(owner=user)

    def with_names(self) -> Self:
        """What a row of a list shows, in one query."""
        return self.select_related("framework", "environment__framework", "model", "profile", "owner")
