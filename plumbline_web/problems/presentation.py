"""How a problem is said: the row that the page, the API and the exports share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from plumbline_web.problems.models import Problem


@dataclass(frozen=True)
class Row:
    """One problem as the list, the API and the exports give it."""

    id: str
    slug: str
    title: str
    framework: str
    component: str
    stage: str
    pattern: str
    silent: bool
    models: tuple[str, ...]
    status: str
    provenance: str
    first_seen: str
    affected: str
    fixed_in: str
    caught_by: tuple[str, ...]
    url: str


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Row))

READ: tuple[str, ...] = ("id", "merged_into", *(name for name in COLUMNS if name != "id"))
"""Columns of the table that a row of the page needs."""


def row(problem: Problem) -> Row:
    """What a list says of a problem."""
    values: dict[str, Any] = {name: getattr(problem, name) for name in COLUMNS if name != "id"}
    lists = {name: tuple(values[name]) for name in ("models", "caught_by")}
    return Row(id=problem.number, **values | lists)
