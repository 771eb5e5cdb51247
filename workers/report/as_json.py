"""The result as one JSON document, described field by field in docs/json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from typing import Any

from checks.verdict import Verdict
from workers.request import ValidationResult, exit_code, total_seconds
from workers.runner import FrameworkRun

SCHEMA = "plumbline-result"
SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes; a new field alone does not raise it."""


def render_json(result: ValidationResult) -> str:
    """The document as text; it holds no number that JSON does not know."""
    return json.dumps(build_document(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def build_document(result: ValidationResult) -> dict[str, Any]:
    """The document as dicts, lists, strings, numbers, booleans and None. Not finite: "nan", "inf", "-inf"."""
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "plumbline": version("plumbline"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": exit_code(result.verdicts),
        "request": to_plain(result.request),
        "spec": to_plain(result.spec),
        "environment": to_plain(result.environment),
        "phases": to_plain(result.phases),
        "total_s": to_plain(total_seconds(result.phases)),
        "runs": [_describe_run(run) for run in result.runs],
        "verdicts": [describe_verdict(verdict) for verdict in result.verdicts],
        "warnings": list(result.warnings),
    }


def _describe_run(run: FrameworkRun) -> dict[str, Any]:
    described: dict[str, Any] = to_plain(run)
    # Without --out the files are gone by now; a path that leads nowhere would be worse than none.
    described["log"] = str(run.log) if run.log.exists() else None
    described["capture"] = str(run.capture) if run.capture is not None and run.capture.exists() else None
    return described


def describe_verdict(verdict: Verdict) -> dict[str, Any]:
    """One verdict as docs/json.md describes it."""
    described: dict[str, Any] = to_plain(verdict)
    described["detection_limit"] = to_plain(verdict.detection_limit)
    return described


def to_plain(value: Any) -> Any:
    """Turn dataclasses, enums, paths, mappings, sequences and array scalars into what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_nonfinite(value)
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays
        return to_plain(value.tolist())
    return str(value)


def _name_nonfinite(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"
