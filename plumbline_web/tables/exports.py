"""A filtered list as CSV, JSON or Parquet: every row of the set, streamed, the same fields as the API's."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

FORMS: Mapping[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
}
"""Ending of the file → its media type (IANA's registry)."""

CHUNK_ROWS = 2_000
"""Rows that the database hands over at once."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet run a cell (OWASP, CSV injection); such a text gets an apostrophe before it."""


class _Echo:
    """A file whose write returns what it was given: csv.writer then makes lines for a stream."""

    def write(self, text: str) -> str:
        return text


def list_columns(kind: type[Any]) -> tuple[str, ...]:
    """Names of the fields of a row's dataclass, in their order."""
    return tuple(field.name for field in fields(kind))


def stream(rows: Iterable[Any], kind: type[Any], form: str) -> Iterator[str] | Iterator[bytes]:
    """Instances of the dataclass `kind`, in one of FORMS."""
    if form == "parquet":
        from plumbline_web.tables.parquet import stream_parquet  # loads a large library, which no page needs

        return stream_parquet(rows, kind)
    return stream_csv(rows, list_columns(kind)) if form == "csv" else stream_json(rows)


def stream_csv(rows: Iterable[Any], columns: Sequence[str]) -> Iterator[str]:
    """A header line, then one line a row. Times are ISO 8601 in UTC; what is none is empty."""
    writer = csv.writer(_Echo())
    yield writer.writerow(columns)
    for each in rows:
        yield writer.writerow([_as_cell(getattr(each, name)) for name in columns])


def stream_json(rows: Iterable[Any]) -> Iterator[str]:
    """One array of objects, written row by row; times as ISO 8601 texts."""
    separator = "[\n"
    for each in rows:
        document = {name: _as_json(value) for name, value in asdict(each).items()}
        yield separator + json.dumps(document, ensure_ascii=False)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def guard_formula(text: str) -> str:
    """A text of a framework or a person, which must not become a formula in the reader's spreadsheet."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _as_cell(value: Any) -> Any:
    if isinstance(value, tuple):
        value = "; ".join(value)
    if isinstance(value, str):
        return guard_formula(value)
    return "" if value is None else _as_json(value)
