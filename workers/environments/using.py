"""Validating in environments: one after another, and their verdicts beside each other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from checks.verdict import Status, Verdict
from workers.environments.containers import VARIABLE as CONTAINER
from workers.environments.store import Store
from workers.frameworks.interpreter import VARIABLE
from workers.report.table import describe_status
from workers.request import ValidationResult


@contextlib.contextmanager
def running_in(name: str, *, store: Store) -> Iterator[None]:
    """Have the frameworks run in an environment.

    Raises:
        BadRequest: there is no such environment.
    """
    named = store.find(name)
    if named.built is not None:
        store.touch(named.built.key)
    before = {name: os.environ.pop(name, None) for name in (VARIABLE, CONTAINER)}
    os.environ |= {VARIABLE: str(named.python)} if named.image is None else {CONTAINER: named.image}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def print_side_by_side(results: Mapping[str, ValidationResult], *, console: Console) -> None:
    """One row a check, one column an environment; then the packages in which the environments differ."""
    table = Table("check", *results)
    verdicts = {name: {each.check: each for each in result.verdicts} for name, result in results.items()}
    for check in dict.fromkeys(check for found in verdicts.values() for check in found):
        row = [found.get(check) for found in verdicts.values()]
        table.add_row(Text(check), *(Text("–") if each is None else describe_status(each.status) for each in row))
    console.print(table)
    for line in list_differences(results):
        console.print(Text(line, style="dim"))
    changed = [check for check in verdicts[next(iter(results))] if _differs(check, list(verdicts.values()))]
    console.print(Text(f"different: {', '.join(changed)}" if changed else "the same verdicts everywhere"))


def _differs(check: str, verdicts: Sequence[Mapping[str, Verdict]]) -> bool:
    statuses: set[Status | None] = {found[check].status if check in found else None for found in verdicts}
    return len(statuses) > 1


def list_differences(results: Mapping[str, ValidationResult]) -> list[str]:
    """A line for each package that all runs had, in different releases."""
    shared = set.intersection(*(set(result.environment) for result in results.values()))
    lines = []
    for package in sorted(shared):
        releases = [result.environment[package] for result in results.values()]
        if len(set(releases)) > 1:
            lines.append(f"{package}: {', '.join(releases)}")
    return lines
