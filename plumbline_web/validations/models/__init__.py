"""Validations, the framework runs and captures they share, and what the checks said."""

from __future__ import annotations

from plumbline_web.validations.models.findings import Finding
from plumbline_web.validations.models.refusals import Refusal
from plumbline_web.validations.models.runs import (
    Capture,
    CaptureFile,
    FrameworkRun,
    Reference,
    RunReference,
    ValidationRun,
)
from plumbline_web.validations.models.validation import Validation
from plumbline_web.validations.models.verdicts import Cell, CheckResult

__all__ = [
    "Capture",
    "CaptureFile",
    "Cell",
    "CheckResult",
    "Finding",
    "FrameworkRun",
    "Reference",
    "Refusal",
    "RunReference",
    "Validation",
    "ValidationRun",
]
