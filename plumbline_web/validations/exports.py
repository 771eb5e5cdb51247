"""The filtered list as CSV or JSON: every row of the set, streamed, the same fields as the API's."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from plumbline_web.validations.presentation import COLUMNS, Row, row
from plumbline_web.validations.querysets import ValidationQuerySet

CHUNK_ROWS = 2_000
"""Rows that the database hands over at once."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet run a cell (OWASP, CSV injection); such a text gets an apostrophe before it."""


class _Echo:
    """A file whose write returns what it was given: csv.writer then makes lines for a stream."""

    def write(self, text: str) -> str:
        return text


def stream_csv(queryset: ValidationQuerySet) -> Iterator[str]:
    """A header line, then one line a validation. Times are ISO 8601 in UTC; what is none is empty."""
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    for each in _rows(queryset):
        yield writer.writerow([_as_cell(getattr(each, name)) for name in COLUMNS])


def stream_json(queryset: ValidationQuerySet) -> Iterator[str]:
    """One array of objects, written row by row."""
    separator = "[\n"
    for each in _rows(queryset):
        yield separator + json.dumps(to_json(each), ensure_ascii=False)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def to_json(each: Row) -> dict[str, Any]:
    """A row as JSON values: times as ISO 8601 texts."""
    return {name: _as_json(value) for name, value in asdict(each).items()}


def _rows(queryset: ValidationQuerySet) -> Iterable[Row]:
    return (row(validation) for validation in queryset.with_names().iterator(chunk_size=CHUNK_ROWS))


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _as_cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return "" if value is None else _as_json(value)
