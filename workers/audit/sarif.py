"""The audit as SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), which code hosts show beside the file."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from checks.catalogue.exposure import Standing
from checks.catalogue.problem import Problem
from workers.audit.audit import Audit, describe_fix
from workers.audit.inventory import Pin

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_sarif(audit: Audit) -> str:
    """The log as text."""
    return json.dumps(build_log(audit), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def build_log(audit: Audit) -> dict[str, Any]:
    """One run: a rule for each problem that was compared, a result for each that affects a release."""
    compared = sorted((*audit.affecting, *audit.not_affecting), key=lambda standing: standing.problem.slug)
    index = {standing.problem.slug: number for number, standing in enumerate(compared)}
    driver = {
        "name": "Plumbline",
        "version": version("plumbline"),
        "rules": [_build_rule(standing.problem) for standing in compared],
    }
    results = [_build_result(standing, index[standing.problem.slug], audit) for standing in audit.affecting]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _level(problem: Problem) -> str:
    return "error" if problem.silent else "warning"


def _build_rule(problem: Problem) -> dict[str, Any]:
    help_text = f"{problem.root_cause} {problem.fix}" if problem.fix else problem.root_cause
    return {
        "id": problem.slug,
        "shortDescription": {"text": problem.title},
        "fullDescription": {"text": problem.symptom},
        "help": {"text": help_text},
        "helpUri": problem.url,
        "defaultConfiguration": {"level": _level(problem)},
        "properties": {"tags": [problem.pattern.value, problem.stage, "silent" if problem.silent else "loud"]},
    }


def _build_result(standing: Standing, index: int, audit: Audit) -> dict[str, Any]:
    problem = standing.problem
    fix = f"fixed in {standing.fixed_in}" if standing.fixed_in is not None else describe_fix(standing)
    message = f"{standing.package} {standing.version}: {problem.title}. {problem.symptom} ({fix}; {problem.url})"
    pin = audit.inventory.pins.get(standing.package)
    release = f"{standing.package}=={standing.version}"
    fingerprint = hashlib.sha256(f"{problem.slug} {release}".encode()).hexdigest()
    return {
        "ruleId": problem.slug,
        "ruleIndex": index,
        "level": _level(problem),
        "message": {"text": message},
        "locations": [_locate(pin) if pin is not None else {"logicalLocations": [{"fullyQualifiedName": release}]}],
        "partialFingerprints": {"plumblineProblem/v1": fingerprint},
    }


def _locate(pin: Pin) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _address(pin.file)},
            "region": {"startLine": pin.line},
        }
    }


def _address(file: Path) -> str:
    """Relative to the current directory, as code hosts want it; absolute for a file outside."""
    path = file.resolve()
    here = Path.cwd().resolve()
    return quote(path.relative_to(here).as_posix()) if path.is_relative_to(here) else path.as_uri()
