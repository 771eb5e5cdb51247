"""The table: what every rule and Plumbline say of every case, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.ten_cases.cases import Case
from benchmarks.ten_cases.expected import ALARM, EXACT, EXPECTED, HIT, LOSS_ONLY, MISS, OK, WRONG_MODULE, differs
from benchmarks.ten_cases.judge import Judgement
from benchmarks.ten_cases.rules import RULES
from benchmarks.ten_cases.run import Row

OUTPUT = "output of "
STYLES = {True: "green", False: "red"}


def describe_alarms(case: Case, alarms: Sequence[str]) -> str:
    """One cell: whether the rule is right about the case, and whether its first wrong output names the faulty module.

    A rule on outputs cannot tell a module from its own last part, so an alarm inside the faulty module counts as exact.
    """
    if case.healthy:
        return ALARM if alarms else OK
    if not alarms:
        return MISS
    if case.module is None:
        return LOSS_ONLY if tuple(alarms) == ("loss",) and case.slug == "not-divided" else HIT
    first = next((name.removeprefix(OUTPUT) for name in alarms if name.startswith(OUTPUT)), None)
    if first is None:
        return HIT
    return EXACT if first == case.module or first.startswith(f"{case.module}.") else WRONG_MODULE


def describe_judgement(judgement: Judgement) -> str:
    """Plumbline's cell: right or not; on a pass the smallest fault that would have been seen, else what was seen."""
    answer = "right" if judgement.right else "WRONG"
    if judgement.case.healthy and not judgement.failed:
        (tensor, kind), (block, rows) = judgement.smallest_in_a_tensor, judgement.smallest_in_a_block
        status = next((v.status.value for v in judgement.verdicts.values() if v.status.value != "pass"), "pass")
        seen = f"{judgement.smallest_scale:.1e} in scale, {tensor:.1e} in any {kind}, {block:.1e} in one row of {rows}"
        return f"{answer}: {status}; would see {seen}"
    checks = ", ".join(name.removeprefix("step.") for name in judgement.failed) or "no check"
    where = f"; first wrong module {judgement.first_wrong_module}" if judgement.first_wrong_module else ""
    return f"{answer}: {checks} fail{where}"


def build_table(rows: Sequence[Row]) -> Table:
    """The table for a terminal; red is a wrong answer, ≠ one that differs from the expected cell."""
    table = Table(title="Ten cases, one step of a two-layer Llama, 51 tensors", show_lines=True)
    for heading in ("case", "size", "loss", *RULES, "Plumbline"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [
            Text(
                f"{cell} ≠" if differs(cell, EXPECTED[row.case.slug][rule]) else cell,
                style=STYLES[cell not in (ALARM, MISS, WRONG_MODULE)],
            )
            for rule, cell in list_cells(row)
        ]
        own = Text(describe_judgement(row.judgement), style=f"bold {STYLES[row.judgement.right]}")
        table.add_row(row.case.title, f"{row.size:.1e}", f"{row.loss_error:.1e}", *cells, own)
    return table


def list_cells(row: Row) -> Iterator[tuple[str, str]]:
    """(rule, cell) of one case."""
    for rule, alarms in row.alarms.items():
        yield rule, describe_alarms(row.case, alarms)


def list_differences(rows: Sequence[Row]) -> Iterator[str]:
    """A sentence for every cell that contradicts the expected one."""
    for row in rows:
        for rule, cell in list_cells(row):
            expected = EXPECTED[row.case.slug][rule]
            if differs(cell, expected):
                first = f", first {row.alarms[rule][0]}" if row.alarms[rule] else ""
                count = len(row.alarms[rule])
                yield f"{row.case.title}, {rule}: {cell} ({count} alarms{first}), expected {expected}"


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that was measured, as JSON values."""
    return {"right": sum(row.judgement.right for row in rows), "cases": [_row_to_json(row) for row in rows]}


def _row_to_json(row: Row) -> dict[str, Any]:
    judgement = row.judgement
    return {
        "case": row.case.slug,
        "title": row.case.title,
        "kind": row.case.kind,
        "faulty_module": row.case.module,
        "largest_relative_error": row.size,
        "loss_error": row.loss_error,
        "rules": {
            rule: {
                "cell": cell,
                "expected": EXPECTED[row.case.slug][rule],
                "differs": differs(cell, EXPECTED[row.case.slug][rule]),
                "alarms": list(row.alarms[rule]),
            }
            for rule, cell in list_cells(row)
        },
        "plumbline": {
            "right": judgement.right,
            "first_wrong_module": judgement.first_wrong_module,
            "verdicts": {
                name: {
                    "status": verdict.status.value,
                    "sentence": verdict.sentence,
                    "first_wrong": verdict.first_wrong,
                    "detection_limits": dict(verdict.detection_limits),
                }
                for name, verdict in judgement.verdicts.items()
            },
        },
    }
