from __future__ import annotations

from django.db import models


class Role(models.TextChoices):
    """What a person may do; each includes those before it."""

    VIEWER = "viewer", "viewer"
    SUBMITTER = "submitter", "submitter"
    TRIAGER = "triager", "triager"
    ADMINISTRATOR = "administrator", "administrator"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class Scope(models.TextChoices):
    """What a token may do; never more than its owner's role."""

    READ = "read", "read everything that its owner sees"
    SUBMIT = "submit", "submit, cancel and retry validations"
    UPLOAD = "upload", "upload captures"
    TRIAGE = "triage", "decide about findings, and undo that"
