from __future__ import annotations

from django.db import models


class Provenance(models.TextChoices):
    """Who says that a problem is one; each is counted apart."""

    IMPORTED = "imported", "imported"
    """reported by others in public, and not run here"""
    REPRODUCED = "reproduced", "reproduced here"
    FOUND = "found", "found here"
    """found here, and known upstream before"""
    FIRST_RAISED = "first-raised", "first raised here"


class UpstreamStatus(models.TextChoices):
    """The values are those of `checks.catalogue.problem.ProblemStatus`."""

    FIXED = "fixed", "fixed"
    OPEN = "open", "open"
    REPORTED = "reported", "reported"
    CLOSED_NOT_FIXED = "closed-not-fixed", "closed, not fixed"
    UPSTREAM = "upstream", "in a dependency"


class OnCpu(models.TextChoices):
    """Whether a CPU shows the problem."""

    YES = "yes", "yes"
    MAYBE = "maybe", "maybe"
    NO = "no", "no"


class Confidence(models.TextChoices):
    HIGH = "high", "high"
    MEDIUM = "medium", "medium"
