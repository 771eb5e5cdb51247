"""Rows as a Parquet file with typed columns, streamed a row group at a time."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from itertools import islice
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS = 10_000
"""Rows of a row group, which is what lies in memory: some megabytes."""

TYPES: Mapping[type, Any] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    datetime: pa.timestamp("us", tz="UTC"),
}


class _Sink:
    """A file that only grows; what was written is taken out as it comes."""

    def __init__(self) -> None:
        self.closed = False
        self._held = bytearray()
        self._passed = 0

    def write(self, data: Any) -> int:
        self._held += data
        return len(data)

    def tell(self) -> int:
        return self._passed + len(self._held)

    def flush(self) -> None:
        """Nothing waits anywhere else."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        taken = bytes(self._held)
        self._passed += len(taken)
        self._held.clear()
        return taken


def describe_columns(kind: type[Any]) -> Any:
    """The schema of a dataclass of texts, numbers, truth values, times in UTC, and tuples of texts.

    A field that may be none is a nullable column, every other one is not.
    """
    hints = get_type_hints(kind)
    return pa.schema([_describe(field.name, hints[field.name]) for field in fields(kind)])


def stream_parquet(rows: Iterable[Any], kind: type[Any]) -> Iterator[bytes]:
    """Instances of the dataclass `kind`. A file without rows has its columns all the same."""
    schema = describe_columns(kind)
    sink = _Sink()
    left = iter(rows)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while group := list(islice(left, GROUP_ROWS)):
            columns = [
                pa.array([_as_value(getattr(each, field.name)) for each in group], type=field.type) for field in schema
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=GROUP_ROWS)
            yield sink.take()
    yield sink.take()


def _describe(name: str, hint: Any) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    (wanted,) = [option for option in options if option is not types.NoneType]
    found = pa.list_(pa.string()) if get_origin(wanted) is tuple else TYPES[wanted]
    return pa.field(name, found, nullable=len(options) > 1)


def _as_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
