"""The other way of as_json.py: a result from its document, as a server gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from checks.spec import LISTS, RunSpec
from checks.verdict import Measurement, Pattern, Status, Verdict
from workers.report.as_json import SCHEMA, SCHEMA_VERSION
from workers.request import PhaseTime, ValidationRequest, ValidationResult

NONFINITE = ("nan", "inf", "-inf")
"""How a number that JSON does not know is written."""

T = TypeVar("T")


class UnknownDocument(ValueError):
    """Not a result, or one of a later version; `str()` says which."""


def read_result(document: Mapping[str, Any]) -> ValidationResult:
    """What the document of docs/json.md says; fields of a newer server are passed over.

    Framework runs are left out: their files lie where the document was made.

    Raises:
        UnknownDocument: another schema, a later version, or a field that is missing or of another kind.
    """
    schema, version = document.get("schema"), document.get("version")
    if schema != SCHEMA or not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UnknownDocument(f"the document is {schema!r} {version!r}, and this reads {SCHEMA!r} {SCHEMA_VERSION}")
    try:
        return ValidationResult(
            request=_read_request(document["request"]),
            spec=_read_spec(document["spec"]),
            verdicts=tuple(_read_verdict(verdict) for verdict in document["verdicts"]),
            phases=tuple(_take(PhaseTime, phase) for phase in document["phases"]),
            runs=(),
            environment=dict(document["environment"]),
            warnings=tuple(document["warnings"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnknownDocument(f"the document is not as docs/json.md describes it ({error!r})") from error


def _read_request(document: Mapping[str, Any]) -> ValidationRequest:
    checks = document["checks"]
    return _take(ValidationRequest, {**document, "out": None, "checks": None if checks is None else tuple(checks)})


def _read_spec(document: Mapping[str, Any]) -> RunSpec:
    paths = {name: Path(document[name]) for name in ("model", "data")}
    lists = {name: tuple(document[name]) for name in LISTS if name in document}
    return _take(RunSpec, {**document, **paths, **lists})


def _read_verdict(document: Mapping[str, Any]) -> Verdict:
    limits = {block: _read_number(limit) for block, limit in document["detection_limits"].items()}
    pattern = document["pattern"]
    return _take(
        Verdict,
        {
            **document,
            "status": Status(document["status"]),
            "measurements": tuple(_read_measurement(each) for each in document["measurements"]),
            "detection_limits": limits,
            "shared_code": tuple(document["shared_code"]),
            "pattern": None if pattern is None else Pattern(pattern),
        },
    )


def _read_measurement(document: Mapping[str, Any]) -> Measurement:
    numbers = {name: _read_number(document[name]) for name in ("value", "threshold", "floor", "limit")}
    return _take(Measurement, {**document, **numbers})


def _read_number(value: Any) -> Any:
    return float(value) if value in NONFINITE else value


def _take(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from the values that it has fields for."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # dataclasses only
    return kind(**{name: value for name, value in values.items() if name in known})
