"""A public problem as a frozen value, and the strict reader of the catalogue's files.

`problems.jsonl` holds one problem a line, `recurrences.jsonl` one group of problems that are the same fault again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from checks.catalogue.lines import Line, read_lines
from checks.errors import BadRequest
from checks.verdict import Pattern

_HERE = Path(__file__).parent
PROBLEMS = _HERE / "problems.jsonl"
RECURRENCES = _HERE / "recurrences.jsonl"


class ProblemStatus(StrEnum):
    """The upstream state when it was read; `upstream` means that the fault sits in a dependency."""

    FIXED = "fixed"
    OPEN = "open"
    REPORTED = "reported"
    CLOSED_NOT_FIXED = "closed-not-fixed"
    UPSTREAM = "upstream"


@dataclass(frozen=True)
class AffectedRange:
    """Releases of one package that have a problem (PEP 440), and where that is known from.

    `needs`: other package → the releases of it without which the problem does not show.
    """

    package: str
    specifier: SpecifierSet
    needs: Mapping[str, SpecifierSet]
    source: str


@dataclass(frozen=True)
class Problem:
    """One correctness problem of training software, read in the public issue, pull request or commit at `url`.

    `silent`: training goes on without an error, with a wrong loss, gradient, datum, weight or logged value.
    `affected` and `fixed_in` are for people, `affected_spec` for comparing: empty means *unknown*, never
    "not affected".
    """

    slug: str
    title: str
    framework: str
    component: str
    models: tuple[str, ...]
    pattern: Pattern
    stage: str
    silent: bool
    symptom: str
    root_cause: str
    fix: str | None
    status: ProblemStatus
    first_seen: str
    """ISO date, as far as known: year-month or year-month-day"""
    affected: str | None
    fixed_in: str | None
    url: str
    """where it is reported upstream; empty where it is not yet"""
    related_urls: tuple[str, ...]
    caught_by: tuple[str, ...]
    cpu_reproducible: str
    shows_in_release: str | None
    confidence: str
    affected_spec: tuple[AffectedRange, ...]


@dataclass(frozen=True)
class Recurrence:
    """Problems that are the same fault again, in another framework or model."""

    name: str
    slugs: tuple[str, ...]
    frameworks: tuple[str, ...]


@cache
def load_problems() -> tuple[Problem, ...]:
    """The problems that ship, in the order of their slugs."""
    return read_problems(PROBLEMS)


@cache
def load_recurrences() -> tuple[Recurrence, ...]:
    """The groups that ship."""
    return read_recurrences(RECURRENCES, known=frozenset(problem.slug for problem in load_problems()))


def read_problems(file: Path) -> tuple[Problem, ...]:
    """Every problem of a file.

    Raises:
        BadRequest: a file that cannot be read, or a line that is not as the catalogue's README says: names the line
            and the field.
    """
    problems: dict[str, Problem] = {}
    for line in read_lines(file):
        problem = _read_problem(line)
        if problem.slug in problems:
            raise line.refuse("slug", f"{problem.slug!r} stands in an earlier line too", "give each problem one line")
        problems[problem.slug] = problem
    return tuple(problems[slug] for slug in sorted(problems))


def read_recurrences(file: Path, *, known: frozenset[str]) -> tuple[Recurrence, ...]:
    """Every group of a file; `known`: the slugs that it may name. Raises BadRequest as `read_problems`."""
    groups = []
    for line in read_lines(file):
        group = Recurrence(line.text("name"), line.texts("slugs"), line.texts("frameworks"))
        line.end()
        for slug in group.slugs:
            if slug not in known:
                raise line.refuse("slugs", f"there is no problem {slug!r}", "name problems of the catalogue")
        groups.append(group)
    return tuple(groups)


def _read_problem(line: Line) -> Problem:
    problem = Problem(
        slug=line.slug("slug"),
        title=line.text("title"),
        framework=line.slug("framework"),
        component=line.text("component"),
        models=line.texts("models"),
        pattern=Pattern(line.choice("pattern", tuple(Pattern))),
        stage=line.text("stage"),
        silent=line.boolean("silent"),
        symptom=line.text("symptom"),
        root_cause=line.text("root_cause"),
        fix=line.optional_text("fix"),
        status=ProblemStatus(line.choice("status", tuple(ProblemStatus))),
        first_seen=line.date("first_seen"),
        affected=line.optional_text("affected"),
        fixed_in=line.optional_text("fixed_in"),
        url=line.optional_url("url"),
        related_urls=line.urls("related_urls"),
        caught_by=line.texts("caught_by"),
        cpu_reproducible=line.choice("cpu_reproducible", ("yes", "maybe", "no")),
        shows_in_release=line.optional_text("shows_in_release"),
        confidence=line.choice("confidence", ("high", "medium")),
        affected_spec=tuple(_read_range(each, line) for each in line.objects("affected_spec")),
    )
    line.end()
    return problem


def _read_range(value: Mapping[str, Any], line: Line) -> AffectedRange:
    each = line.within(value, "affected_spec")
    needs = each.mapping("needs") if "needs" in value else {}
    found = AffectedRange(
        package=each.package(each.text("package"), "package"),
        specifier=each.specifier(each.text("specifier"), "specifier"),
        needs={each.package(name, "needs"): each.specifier(text, "needs") for name, text in needs.items()},
        source=each.text("source"),
    )
    each.end()
    if found.package in found.needs:
        raise BadRequest(
            each.where("needs"), f"names {found.package!r} itself", "put its releases into the range's specifier"
        )
    return found
