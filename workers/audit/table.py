"""The audit in the terminal: what affects the releases, what a user sees of it, and what could not be judged."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from workers.audit.audit import Audit, describe_fix
from workers.report.console import clean_text

WIDTH = 240
"""columns where the output is a file or a pipe, so that no address is broken"""

SILENT, LOUD = "▲ silent", "● shows itself"


def print_audit(audit: Audit, *, console: Console) -> None:
    """Print the table, the lines that were not judged, and the counts."""
    if not console.is_terminal:
        console.width = WIDTH
    inventory = audit.inventory
    console.print(Text(clean_text(f"{inventory.source}: {len(inventory.packages)} packages"), style="bold"))
    if audit.affecting:
        console.print(_build_table(audit, whole=not console.is_terminal))
    for each in inventory.unjudged:
        text = f"not pinned, not judged: {each.file}, line {each.line}: {each.text} ({each.why})"
        console.print(Text(clean_text(text), style="yellow"), soft_wrap=True)
    for line in summarize(audit):
        console.print(Text(line), soft_wrap=True)


def _build_table(audit: Audit, *, whole: bool) -> Table:
    table = Table()
    # A terminal follows the link of a folded address too; a log does not.
    for column in ("problem", "", "package", "what a user sees", "fixed in", "link"):
        table.add_column(column, overflow="fold", no_wrap=column == "" or (whole and column in ("problem", "link")))
    for standing in audit.affecting:
        problem = standing.problem
        table.add_row(
            Text(problem.slug, style="bold"),
            Text(SILENT, style="bold red") if problem.silent else Text(LOUD, style="cyan"),
            Text(clean_text(f"{standing.package} {standing.version}")),
            Text(problem.symptom),
            Text(describe_fix(standing)),
            Text(problem.url, style=f"link {problem.url}"),
        )
    return table


def summarize(audit: Audit) -> tuple[str, ...]:
    """The counts: affecting, not affecting, unknown, and of other packages."""
    affecting, silent = len(audit.affecting), len(audit.silent)
    return (
        f"known problems that affect these releases: {affecting} ({silent} silent, {affecting - silent} that show "
        "themselves)",
        f"that do not: {len(audit.not_affecting)}",
        f"unknown: {len(audit.unknown)} (it is not known which releases they affect, or not of ones this new)",
        f"of packages that are not here: {audit.elsewhere}",
    )
