"""The verdict table in the terminal: word, shape and colour, numbers beside thresholds, then what did not pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checks.verdict import Status, Verdict
from workers.report.console import clean_text
from workers.report.numbers import format_limit, format_measurement, format_seconds, pick_largest
from workers.request import PhaseTime, ValidationResult, total_seconds

SYMBOLS: Mapping[Status, str] = {
    Status.PASS: "●",
    Status.FAIL: "▲",
    Status.INCONCLUSIVE: "◆",
    Status.ERROR: "■",
    Status.SKIPPED: "○",
}
STYLES: Mapping[Status, str] = {
    Status.PASS: "cyan",
    Status.FAIL: "bold red",
    Status.INCONCLUSIVE: "yellow",
    Status.ERROR: "magenta",
    Status.SKIPPED: "dim",
}
"""Told apart by colour-blind people, and never the only sign: the word and the shape stand beside it."""

COLUMNS = ("check", "verdict", "largest error / threshold", "detection limit", "blind to")


def print_result(result: ValidationResult, *, console: Console) -> None:
    """Print the table, the sentences of all that did not pass, the warnings and the times."""
    request = result.request
    console.print(Text(f"{request.framework} · {request.model} · {request.data}", style="bold"))
    console.print(_build_table(result.verdicts))
    for verdict in result.verdicts:
        if verdict.status is not Status.PASS:
            _print_explanation(verdict, console)
    for warning in result.warnings:
        console.print(Text.assemble(("note ", "bold"), clean_text(warning)))
    console.print(Text(summarize_verdicts(result.verdicts)))
    console.print(Text(summarize_phases(result.phases), style="dim"))


def _build_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table()
    for column in COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column in ("check", "verdict"))
    for verdict in verdicts:
        table.add_row(
            Text(verdict.check),
            describe_status(verdict.status),
            Text(format_measurement(pick_largest(verdict.measurements))),
            Text(format_limit(verdict.detection_limits)),
            Text(", ".join(verdict.shared_code) or "–"),
        )
    return table


def describe_status(status: Status) -> Text:
    """Shape and word in the verdict's colour."""
    return Text(f"{SYMBOLS[status]} {status.value}", style=STYLES[status])


def _print_explanation(verdict: Verdict, console: Console) -> None:
    console.print(Text.assemble(describe_status(verdict.status), " ", (verdict.check, "bold")))
    console.print(Padding(Text(clean_text(verdict.sentence)), (0, 0, 0, 2), expand=False))
    if verdict.first_wrong is not None:
        console.print(Padding(Text(clean_text(f"first wrong: {verdict.first_wrong}")), (0, 0, 0, 2), expand=False))
    if verdict.pattern is not None:
        console.print(Padding(Text(f"pattern: {verdict.pattern.value}"), (0, 0, 0, 2), expand=False))


def summarize_verdicts(verdicts: Sequence[Verdict]) -> str:
    """How many of each: "5 pass, 1 fail, 2 skipped"."""
    counts = {status: sum(verdict.status is status for verdict in verdicts) for status in Status}
    return ", ".join(f"{count} {status.value}" for status, count in counts.items() if count) or "no check was judged"


def summarize_phases(phases: Sequence[PhaseTime]) -> str:
    """The total time and the dearest phase."""
    if not phases:
        return "nothing was run"
    dearest = max(phases, key=lambda phase: phase.seconds)
    total = format_seconds(total_seconds(phases))
    return f"total {total}; dearest phase: {dearest.name}, {format_seconds(dearest.seconds)}"
