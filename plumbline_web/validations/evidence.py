"""One verdict's whole evidence, laid out for a page from the document of docs/json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.document import read_paragraph
from checks.registry import CHECKS
from plumbline_web.validations.models import CheckResult
from plumbline_web.validations.pictures import (
    Picture,
    TokenRow,
    describe_records,
    is_picture,
    read_pictures,
    read_token_rows,
)

MOST_MEASUREMENTS = 2_000
"""Rows of the table; the download has all."""
LONGEST_VALUE = 4_000
"""Characters of one piece of evidence that the page shows."""
SHORT_LIST = 12


@dataclass(frozen=True)
class Measured:
    """One number that was compared, as the document has it."""

    name: str
    block: str
    value: Any
    floor: Any
    threshold: Any
    limit: Any
    unit: str
    holds: bool

    @property
    def ratio(self) -> float:
        """value ÷ threshold: what the rows are ordered by."""
        value, threshold = float(self.value), float(self.threshold)
        if math.isnan(value):
            return math.inf
        if threshold == 0:
            return 0.0 if value == 0 else math.inf
        return abs(value) / threshold

    @property
    def ratio_shown(self) -> float | None:
        return self.ratio if math.isfinite(self.ratio) else None


@dataclass(frozen=True)
class Fact:
    """A short piece of evidence."""

    name: str
    value: Any
    is_number: bool


@dataclass(frozen=True)
class NumberTable:
    """Numbers by name, such as scale and cosine of each tensor: evidence with the same names, side by side."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Any, ...]], ...]

    @property
    def title(self) -> str:
        return " and ".join(self.columns)


@dataclass(frozen=True)
class RecordTable:
    """Evidence that is a list of records: a column a field."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Raw:
    """Evidence of any other form, as JSON; `left_out`: characters that are not shown."""

    name: str
    text: str
    left_out: int


@dataclass(frozen=True)
class Evidence:
    """A verdict's page."""

    result: CheckResult
    measurements: tuple[Measured, ...]
    left_out: int
    limits: tuple[tuple[str, Any], ...]
    shared_code: tuple[str, ...]
    facts: tuple[Fact, ...]
    pictures: tuple[Picture, ...]
    token_rows: tuple[TokenRow, ...]
    tables: tuple[NumberTable, ...]
    records: tuple[RecordTable, ...]
    raws: tuple[Raw, ...]
    claim: str
    reference: str
    catches: str
    blind: str
    cost: str

    @property
    def failing(self) -> int:
        return sum(not each.holds for each in self.measurements)


def read_evidence(result: CheckResult) -> Evidence:
    """Lay out a verdict: what does not hold comes first, then what came nearest to its threshold."""
    document: Mapping[str, Any] = result.document
    measurements = sorted(
        (_read_measurement(each) for each in document.get("measurements", ())),
        key=lambda each: (each.holds, -each.ratio),
    )
    evidence: Mapping[str, Any] = document.get("evidence") or {}
    check = CHECKS.get(result.check_name)
    description = check.description if check is not None else ""
    limits = sorted(document.get("detection_limits", {}).items(), key=lambda item: -_as_float(item[1]))
    return Evidence(
        result=result,
        measurements=tuple(measurements[:MOST_MEASUREMENTS]),
        left_out=max(0, len(measurements) - MOST_MEASUREMENTS),
        limits=tuple(limits),
        shared_code=tuple(document.get("shared_code", ())),
        facts=tuple(_read_fact(name, value) for name, value in evidence.items() if _is_short(value)),
        pictures=read_pictures(evidence),
        token_rows=read_token_rows(evidence),
        tables=_read_tables(evidence, names=[each["name"] for each in document.get("measurements", ())]),
        records=tuple(_read_records(evidence)),
        raws=tuple(_read_raw(name, value) for name, value in evidence.items() if _is_raw(name, value)),
        claim=check.claim if check is not None else "",
        reference=read_paragraph(description, "Reference"),
        catches=read_paragraph(description, "Catches"),
        blind=read_paragraph(description, "Cannot see"),
        cost=read_paragraph(description, "Cost"),
    )


def _read_measurement(each: Mapping[str, Any]) -> Measured:
    return Measured(
        name=each["name"],
        block="" if each["block"] is None else str(each["block"]),
        value=each["value"],
        floor=each["floor"],
        threshold=each["threshold"],
        limit=each["limit"],
        unit=each["unit"],
        holds=each["holds"],
    )


def _as_float(value: Any) -> float:
    """A document's number: "nan", "inf" and "-inf" are texts there."""
    number = float(value)
    return math.inf if math.isnan(number) else number


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_short(value: Any) -> bool:
    if value is None or isinstance(value, (str, bool)) or _is_number(value):
        return not isinstance(value, str) or len(value) <= LONGEST_VALUE
    return isinstance(value, list) and len(value) <= SHORT_LIST and all(isinstance(e, (str, int, float)) for e in value)


def _is_number_table(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(_is_number(each) for each in value.values())


def _read_tables(evidence: Mapping[str, Any], *, names: Sequence[str]) -> tuple[NumberTable, ...]:
    """`names`: the order of the rows; PostgreSQL keeps no order of an object's keys, and a list's it does."""
    found: dict[frozenset[str], list[str]] = {}
    for name, value in sorted(evidence.items()):
        if _is_number_table(value):
            found.setdefault(frozenset(value), []).append(name)
    places = {name: place for place, name in reversed(list(enumerate(names)))}
    return tuple(
        NumberTable(
            tuple(column.replace("_", " ") for column in columns),
            tuple(
                (key, tuple(evidence[column][key] for column in columns))
                for key in sorted(keys, key=lambda key: (places.get(key, len(places)), key))
            ),
        )
        for keys, columns in found.items()
    )


def _is_raw(name: str, value: Any) -> bool:
    if _is_short(value) or _is_number_table(value) or is_picture(name, value):
        return False
    return describe_records(value) is None


def _read_records(evidence: Mapping[str, Any]) -> Iterator[RecordTable]:
    for name, value in evidence.items():
        table = None if is_picture(name, value) else describe_records(value)
        if table is not None:
            columns, rows = table
            yield RecordTable(
                name.replace("_", " "),
                tuple(column.replace("_", " ") for column in columns),
                rows[:MOST_MEASUREMENTS],
            )


def _read_fact(name: str, value: Any) -> Fact:
    title = name.replace("_", " ")
    if isinstance(value, list):
        return Fact(title, ", ".join(str(each) for each in value) or "none", False)
    if isinstance(value, bool) or value is None:
        return Fact(title, {True: "yes", False: "no", None: "none"}[value], False)
    return Fact(title, value, _is_number(value))


def _read_raw(name: str, value: Any) -> Raw:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return Raw(name.replace("_", " "), text[:LONGEST_VALUE], max(0, len(text) - LONGEST_VALUE))
