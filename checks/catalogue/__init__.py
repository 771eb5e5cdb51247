"""The public problems of training software that ship with Plumbline, and which releases have them.

These are *imported* problems: reported by others in public trackers, and told here in our own words. One that a run
shows is a finding with evidence of its own; the two are never counted together.
"""

from __future__ import annotations

from checks.catalogue.exposure import PACKAGES, Exposure, Standing, assess, assess_all
from checks.catalogue.problem import (
    AffectedRange,
    Problem,
    ProblemStatus,
    Recurrence,
    load_problems,
    load_recurrences,
    read_problems,
    read_recurrences,
)

__all__ = [
    "PACKAGES",
    "AffectedRange",
    "Exposure",
    "Problem",
    "ProblemStatus",
    "Recurrence",
    "Standing",
    "assess",
    "assess_all",
    "load_problems",
    "load_recurrences",
    "read_problems",
    "read_recurrences",
]
