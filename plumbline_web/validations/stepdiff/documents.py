"""Verdict documents (docs/json.md) as values: numbers that JSON spells as texts are numbers again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plumbline_web.validations.presentation import SHAPES

FAIL, PASS, SKIPPED = "fail", "pass", "skipped"


@dataclass(frozen=True)
class Measured:
    """One measurement of a verdict; `value`, `floor`, `threshold` and `limit` share `unit`."""

    name: str
    value: float
    threshold: float
    holds: bool
    floor: float | None
    limit: float | None
    block: str | None
    unit: str

    @property
    def ratio(self) -> float:
        """Value in thresholds; above 1 it is wrong."""
        return in_thresholds(self.value, self.threshold)


@dataclass(frozen=True)
class Judged:
    """One check's verdict, read from its document."""

    check: str
    status: str
    sentence: str
    measurements: tuple[Measured, ...]
    evidence: Mapping[str, Any]
    first_wrong: str | None
    pattern: str | None
    shared_code: tuple[str, ...]

    @property
    def shape(self) -> str:
        return SHAPES.get(self.status, "○")

    def table(self, key: str) -> Mapping[str, Any]:
        """A mapping of the evidence; empty where the verdict has none."""
        found = self.evidence.get(key)
        return found if isinstance(found, Mapping) else {}


def read_documents(documents: Iterable[Mapping[str, Any]]) -> dict[str, Judged]:
    """Check name → verdict."""
    return {document["check"]: _read(document) for document in documents}


def _read(document: Mapping[str, Any]) -> Judged:
    return Judged(
        check=document["check"],
        status=document["status"],
        sentence=document["sentence"],
        measurements=tuple(_read_measurement(entry) for entry in document.get("measurements") or ()),
        evidence=document.get("evidence") or {},
        first_wrong=document.get("first_wrong"),
        pattern=document.get("pattern"),
        shared_code=tuple(document.get("shared_code") or ()),
    )


def _read_measurement(entry: Mapping[str, Any]) -> Measured:
    return Measured(
        name=entry["name"],
        value=read_number(entry["value"]),
        threshold=read_number(entry["threshold"]),
        holds=entry["holds"],
        floor=read_optional(entry.get("floor")),
        limit=read_optional(entry.get("limit")),
        block=entry.get("block"),
        unit=entry.get("unit") or "relative error",
    )


def read_number(value: object) -> float:
    """A JSON number, or one of the texts "nan", "inf" and "-inf"; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except ValueError:
        return math.nan


def read_optional(value: object) -> float | None:
    return None if value is None else read_number(value)


def in_thresholds(value: float, threshold: float) -> float:
    """value / threshold; 0 for 0 / 0, infinite for anything else over 0, NaN where the value is."""
    if threshold > 0.0 or math.isnan(value):
        return value / threshold if threshold else math.nan
    return 0.0 if value == 0.0 else math.inf
