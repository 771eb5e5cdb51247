"""What the catalogue holds of each facet, and the matrices of two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from django.core.cache import cache
from django.db import connection
from django.db.models import Count, Q

from plumbline_web.problems.models import Problem, ProblemQuerySet
from plumbline_web.validations.enums import Pattern

COLUMNS = ("framework", "stage", "component")
LISTS = {"model": "models", "caught_by": "caught_by"}
"""facet → the column whose lists hold its values"""

MOST_VALUES = 300
"""Of one facet, the most frequent first; the search finds the others."""

KEPT_S = 60
"""Seconds for which nothing is counted again while no problem changes."""

T = TypeVar("T")


def keep_while_unchanged(name: str, count: Callable[[], T]) -> T:
    """What `count` gives, counted anew when a problem has changed, which one query asks.

    A problem that another transaction changed a moment before, and committed after, is counted with the next change or
    after KEPT_S seconds.
    """
    newest = Problem.objects.order_by("-updated_at", "-pk").values_list("updated_at", "pk").first()
    if newest is None:
        return count()
    at, pk = newest
    found: T | None = cache.get_or_set(f"problem-{name}-{pk}-{at.timestamp()}", count, KEPT_S)
    return count() if found is None else found


@dataclass(frozen=True)
class Facets:
    """facet → its values with the number of problems, in alphabetical order."""

    values: Mapping[str, Sequence[tuple[str, int]]]

    def of(self, name: str) -> Sequence[tuple[str, int]]:
        return self.values.get(name, ())


def read_facets() -> Facets:
    """All facets whose values are the catalogue's own."""
    return keep_while_unchanged("facets", count_facets)


def count_facets() -> Facets:
    """All facets whose values are the catalogue's own, in two scans of the table."""
    table = Problem._meta.db_table
    sets = ", ".join(f"({name})" for name in COLUMNS)
    scalars = f"SELECT {', '.join(COLUMNS)}, count(*) FROM {table} GROUP BY GROUPING SETS ({sets})"
    lists = " UNION ALL ".join(
        f"SELECT '{facet}', value, count(*) FROM {table}, unnest({column}) AS value GROUP BY value"
        for facet, column in LISTS.items()
    )
    found: dict[str, list[tuple[str, int]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(scalars)
        for *values, count in cursor.fetchall():
            name, value = next((name, value) for name, value in zip(COLUMNS, values, strict=True) if value is not None)
            found.setdefault(name, []).append((value, count))
        cursor.execute(lists)
        for name, value, count in cursor.fetchall():
            found.setdefault(name, []).append((value, count))
    return Facets({name: _choose(values) for name, values in found.items()})


@dataclass(frozen=True)
class Tally:
    """Problems of one cell of a matrix."""

    count: int
    silent: int


@dataclass(frozen=True)
class Line:
    """A row of the matrix: its value, its title, one tally a pattern (None where there is no problem), and all."""

    value: str
    title: str
    tallies: tuple[Tally | None, ...]
    total: Tally


@dataclass(frozen=True)
class Matrix:
    """Values of `facet` × the seven patterns."""

    facet: str
    patterns: tuple[tuple[str, str], ...]
    """value, title"""
    lines: tuple[Line, ...]
    totals: tuple[Tally, ...]
    """of each pattern"""
    most: int
    """the largest count of a cell, for shading"""


def read_whole_matrices(facets: Sequence[str]) -> list[Matrix]:
    """Those of the whole catalogue."""
    return keep_while_unchanged("matrices", lambda: [read_matrix(Problem.objects.all(), facet) for facet in facets])


def read_matrix(problems: ProblemQuerySet, facet: str) -> Matrix:
    """Count `problems` by pattern and one of COLUMNS, in one query."""
    rows = (
        problems.order_by()
        .values_list(facet, "pattern")
        .annotate(number=Count("*"), quiet=Count("silent", filter=Q(silent=True)))
    )
    cells = {(value, pattern): Tally(number, quiet) for value, pattern, number, quiet in rows}
    patterns = tuple((str(value), str(title)) for value, title in Pattern.choices)
    lines = []
    for value in {value for value, _ in cells}:
        tallies = tuple(cells.get((value, pattern)) for pattern, _ in patterns)
        lines.append(Line(value, value, tallies, _add(tallies)))
    lines.sort(key=lambda line: (-line.total.count, line.value))
    totals = tuple(_add([cells.get((line.value, pattern)) for line in lines]) for pattern, _ in patterns)
    return Matrix(facet, patterns, tuple(lines), totals, max((tally.count for tally in cells.values()), default=0))


def _add(tallies: Sequence[Tally | None]) -> Tally:
    present = [tally for tally in tallies if tally is not None]
    return Tally(sum(tally.count for tally in present), sum(tally.silent for tally in present))


def _choose(values: list[tuple[str, int]]) -> list[tuple[str, int]]:
    frequent = sorted(values, key=lambda pair: (-pair[1], pair[0]))[:MOST_VALUES]
    return sorted(frequent, key=lambda pair: pair[0].lower())
