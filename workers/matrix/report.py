"""A matrix as a table in the terminal, and as a page of Markdown with a reason beside all that is no pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from checks.verdict import Status
from workers.matrix.cells import REFUSED, Outcome
from workers.report.table import describe_status

SHOWN_PACKAGES = ("torch", "transformers", "trl", "ms-swift", "nemo-automodel", "peft")


def print_matrix(outcomes: Sequence[Outcome], *, console: Console) -> None:
    """A row a model, a column a framework and precision; what is not yet run is left empty."""
    columns = list(dict.fromkeys((each.cell.framework, each.cell.precision) for each in outcomes))
    table = Table("model", *(f"{framework}\n{precision}" for framework, precision in columns))
    cells = {(each.cell.model, each.cell.framework, each.cell.precision): each for each in outcomes}
    for model in dict.fromkeys(each.cell.model for each in outcomes):
        row = [cells.get((model, *column)) for column in columns]
        table.add_row(
            Text(model), *(Text("–") if each is None else describe_status(Status(each.status)) for each in row)
        )
    console.print(table)
    console.print(Text(summarize(outcomes)))


def summarize(outcomes: Sequence[Outcome]) -> str:
    """`40 pass, 3 fail, 5 skipped`."""
    counts = Counter(each.status for each in outcomes)
    named = (f"{counts[status.value]} {status.value}" for status in Status if counts[status.value])
    return ", ".join(named) or "nothing was run"


def render_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table, the releases, and each cell that is no pass with its sentences."""
    columns = list(dict.fromkeys((each.cell.framework, each.cell.precision) for each in outcomes))
    cells = {(each.cell.model, each.cell.framework, each.cell.precision): each for each in outcomes}
    lines = ["# Frameworks and models", "", summarize(outcomes) + ".", ""]
    lines.append("| model | " + " | ".join(f"{framework}, {precision}" for framework, precision in columns) + " |")
    lines.append("| --- |" + " --- |" * len(columns))
    for model in dict.fromkeys(each.cell.model for each in outcomes):
        row = [cells.get((model, *column)) for column in columns]
        lines.append(f"| {model} | " + " | ".join("" if each is None else _word(each) for each in row) + " |")
    lines += ["", "## Releases", ""]
    for framework in dict.fromkeys(each.cell.framework for each in outcomes):
        lines.append(f"- {framework}: {_name_releases(framework, outcomes)}")
    lines += ["", "## What is no pass", ""]
    for each in outcomes:
        if each.reasons:
            lines.append(f"- **{each.cell.framework}, {each.cell.model}, {each.cell.precision}: {each.status}**")
            lines += [f"  - {check}: {sentence}" for check, sentence in each.reasons.items()]
    return "\n".join(lines) + "\n"


def _word(outcome: Outcome) -> str:
    if outcome.status == REFUSED:
        return REFUSED
    if outcome.status == Status.PASS.value:
        return f"pass ({outcome.passed})"
    return f"{outcome.status}: {', '.join(outcome.reasons)}"


def _name_releases(framework: str, outcomes: Sequence[Outcome]) -> str:
    found = next((each.packages for each in outcomes if each.cell.framework == framework and each.packages), None)
    if found is None:
        return "not run"
    return ", ".join(f"{name} {found[name]}" for name in SHOWN_PACKAGES if name in found)
