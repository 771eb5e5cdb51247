"""A problem as the catalogue writes it: one JSON object, its keys in the order of the shipped file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from checks.catalogue import problem as known
from checks.verdict import Pattern
from plumbline_web.problems.models import Problem

TEXTS_OR_NONE = ("fix", "affected", "fixed_in", "url", "shows_in_release")
"""Fields that the catalogue leaves null and a column leaves empty."""

FIELDS = (
    *("slug", "title", "framework", "component", "models", "pattern", "stage", "silent", "symptom", "root_cause"),
    *("fix", "status", "first_seen", "affected", "fixed_in", "url", "related_urls", "caught_by", "cpu_reproducible"),
    *("shows_in_release", "confidence", "affected_spec"),
)

RANGE = ("package", "specifier", "needs", "source")
"""Keys of a range of releases, in their order."""


def to_columns(document: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a document of the catalogue fills; it was read strictly before."""
    columns = {name: document[name] for name in FIELDS}
    return columns | {name: columns[name] or "" for name in TEXTS_OR_NONE}


def to_document(problem: Problem) -> dict[str, Any]:
    """What the catalogue's file says of a problem, in its order."""
    document = {name: getattr(problem, name) for name in FIELDS}
    # PostgreSQL keeps the keys of an object in an order of its own.
    ranges = [{key: each[key] for key in RANGE if key in each} for each in problem.affected_spec]
    return document | {name: document[name] or None for name in TEXTS_OR_NONE} | {"affected_spec": ranges}


def changed_here(problem: Problem) -> tuple[str, ...]:
    """Fields in which a problem differs from the catalogue that it came with: what a person changed."""
    shipped: Mapping[str, Any] | None = problem.shipped
    if shipped is None:
        return ()
    return tuple(name for name in FIELDS if getattr(problem, name) != shipped[name])


def to_problem(row: Problem) -> known.Problem:
    """A row as the pure library reads problems."""
    ranges = tuple(
        known.AffectedRange(
            package=each["package"],
            specifier=SpecifierSet(each["specifier"]),
            needs={name: SpecifierSet(text) for name, text in each.get("needs", {}).items()},
            source=each["source"],
        )
        for each in row.affected_spec
    )
    values = {name: getattr(row, name) for name in FIELDS}
    values |= {name: values[name] or None for name in TEXTS_OR_NONE if name != "url"}
    values |= {name: tuple(values[name]) for name in ("models", "related_urls", "caught_by")}
    values |= {"pattern": Pattern(row.pattern), "status": known.ProblemStatus(row.status), "affected_spec": ranges}
    return known.Problem(**values)
