"""The tables behind the charts, with full values, for a page and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plumbline_web.tables.exports import guard_formula
from plumbline_web.validations.stepdiff.forward import Forward
from plumbline_web.validations.stepdiff.tensors import Tensor
from plumbline_web.validations.stepdiff.tokens import Token, TokenRow

MOST_TOKENS = 200
"""Rows of the token table on a page; the CSV has all."""

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


def list_tensor_rows(tensors: Iterable[Tensor]) -> Table:
    header = (
        "tensor", "part", "step", "value", "floor", "threshold", "in thresholds", "limit", "holds", "worst block",
        "scale", "cosine",
    )  # fmt: skip
    rows = tuple(
        (t.name, t.part, t.step, t.value, t.floor, t.threshold, t.ratio, t.limit, t.holds, t.block, t.scale, t.cosine)
        for t in tensors
    )
    return Table("tensors", header, rows)


def list_token_rows(row: TokenRow) -> Table:
    header = ("position", "token", "counted", "asked", "document", "framework", "reference", "difference")
    rows = tuple(
        (t.position, t.token, t.counted, t.asked, t.document, t.framework, t.reference, t.difference)
        for t in row.tokens
    )
    return Table("tokens", header, rows)


def list_module_rows(forward: Forward) -> Table:
    header = ("module", "class", "error", "floor", "threshold", "in thresholds", "holds")
    rows = tuple((m.path, m.class_name, m.error, m.floor, m.threshold, m.ratio, m.holds) for m in forward.modules)
    return Table("forward", header, rows)


def pick_tokens(row: TokenRow, *, most: int = MOST_TOKENS) -> Sequence[Token]:
    """The positions that a page lists: all, or those furthest off, in their order."""
    if len(row.tokens) <= most:
        return row.tokens

    def urgency(token: Token) -> tuple[bool, float]:
        off = 0.0 if token.difference is None else abs(token.difference)
        return (token.asked is not None and token.asked != token.counted, off if off == off else float("inf"))

    return sorted(sorted(row.tokens, key=urgency, reverse=True)[:most], key=lambda token: token.position)


def render_csv(table: Table) -> str:
    """Comma-separated, a header line first; numbers with every digit that tells them apart, an empty field for none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(table.header)
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return buffer.getvalue()


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return guard_formula(value) if isinstance(value, str) else str(value)
