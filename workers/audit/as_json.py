"""The audit as one JSON document, described field by field in docs/audit.md."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from checks.catalogue.exposure import Standing
from workers.audit.audit import Audit
from workers.report.as_json import to_plain

SCHEMA = "plumbline-audit"
SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes; a new field alone does not raise it."""


def render_json(audit: Audit) -> str:
    """The document as text."""
    return json.dumps(build_document(audit), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def build_document(audit: Audit) -> dict[str, Any]:
    """The document as dicts, lists, strings, numbers, booleans and None."""
    inventory = audit.inventory
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "plumbline": version("plumbline"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": audit.exit_code,
        "source": inventory.source,
        "packages": dict(inventory.packages),
        "counts": {
            "affecting": len(audit.affecting),
            "affecting_silent": len(audit.silent),
            "not_affecting": len(audit.not_affecting),
            "unknown": len(audit.unknown),
            "other_packages": audit.elsewhere,
        },
        "affecting": [_describe(standing, audit) for standing in audit.affecting],
        "not_affecting": [_describe_briefly(standing) for standing in audit.not_affecting],
        "unknown": [_describe_briefly(standing) for standing in audit.unknown],
        "not_judged": to_plain(inventory.unjudged),
    }


def _describe(standing: Standing, audit: Audit) -> dict[str, Any]:
    problem, found = standing.problem, standing.range
    pin = audit.inventory.pins.get(standing.package)
    return {
        "slug": problem.slug,
        "title": problem.title,
        "silent": problem.silent,
        "pattern": problem.pattern.value,
        "stage": problem.stage,
        "models": list(problem.models),
        "package": standing.package,
        "version": standing.version,
        "affected": None if found is None else str(found.specifier),
        "needs": {} if found is None else {name: str(each) for name, each in found.needs.items()},
        "source": None if found is None else found.source,
        "symptom": problem.symptom,
        "root_cause": problem.root_cause,
        "status": problem.status.value,
        "fixed_in": standing.fixed_in,
        "url": problem.url,
        "related_urls": list(problem.related_urls),
        "file": None if pin is None else str(pin.file),
        "line": None if pin is None else pin.line,
    }


def _describe_briefly(standing: Standing) -> dict[str, Any]:
    return {
        "slug": standing.problem.slug,
        "silent": standing.problem.silent,
        "package": standing.package,
        "version": standing.version,
        "why": standing.why,
        "url": standing.problem.url,
    }
