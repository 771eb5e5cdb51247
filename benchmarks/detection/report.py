"""The figures as tables on the console, and as docs/detection.json and docs/detection.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.detection.causes import ALARM_CAUSES, CAUSES, LEFT_OUT
from benchmarks.detection.score import DETECTED, NAMED, PLACED, PRECISION, FaultScore, Scores, rate_of
from benchmarks.detection.split import HALVES, Half
from checks.tolerance import VERSION
from checks.verdict import Pattern

COLUMNS = ("pattern", "faults", "detected", "right check", "right module or stage", "first-named pattern")
COST_COLUMNS = ("check", "cases", "mean s", "mean MB", "healthy", "alarms", "inconclusive")


def print_report(scores: Scores, console: Console) -> None:
    """Both halves by pattern, healthy runs, costs, and every miss with its reason."""
    for half in HALVES:
        table = Table(*COLUMNS, title=f"{half} half, faults in force")
        for row in list_rows(scores, half):
            table.add_row(*row)
        console.print(table)
    for line in describe_healthy(scores):
        console.print(line, highlight=False)
    costs = Table(*COST_COLUMNS, title="a check")
    for row in list_costs(scores):
        costs.add_row(*row)
    console.print(costs)
    for line in (*list_misses(scores), *list_alarms(scores)):
        console.print(line, markup=False, highlight=False)
    for line in scores.shortfalls():
        console.print(f"SHORT: {line}", markup=False, highlight=False)


def write_documents(scores: Scores, directory: Path) -> None:
    """Write detection.json (every score) and detection.md (the tables)."""
    content = {"tolerance": VERSION, **asdict(scores), "shortfalls": scores.shortfalls()}
    (directory / "detection.json").write_text(json.dumps(content, indent=1) + "\n")
    (directory / "detection.md").write_text("\n".join(_write_markdown(scores)) + "\n")


def list_rows(scores: Scores, half: Half) -> Iterator[tuple[str, ...]]:
    """One row a pattern, then all of them, then all in float32."""
    for pattern in Pattern:
        yield _row(pattern.value, scores.faults_of(half, pattern))
    yield _row("all", scores.faults_of(half))
    yield _row(f"all in {PRECISION}", scores.faults_of(half, precision=PRECISION))


def _row(name: str, faults: Sequence[FaultScore]) -> tuple[str, ...]:
    return (
        name,
        str(len(faults)),
        str(rate_of(score.detected for score in faults)),
        str(rate_of(score.right_check for score in faults)),
        str(rate_of(score.right_place for score in faults)),
        str(rate_of(score.right_pattern for score in faults)),
    )


def describe_healthy(scores: Scores) -> Iterator[str]:
    """How many healthy runs of each half alarm, with interval, and how many are bitwise repeats."""
    for half in HALVES:
        for precision in (PRECISION, None):
            runs = scores.healthy_of(half, precision=precision)
            alarms = rate_of(bool(score.alarms) for score in runs)
            unsure = sum(bool(score.inconclusive) for score in runs)
            yield (
                f"{half} half, {precision or 'all precisions'}: {len(runs)} healthy runs, no two bitwise equal; "
                f"false alarms {alarms}; {unsure} with a check that is inconclusive"
            )
    repeats = [score for score in scores.healthy if score.repeats is not None]
    yield f"{len(repeats)} healthy runs are bitwise equal to another and do not count"


def list_costs(scores: Scores) -> Iterator[tuple[str, ...]]:
    """One row a check: its judge's seconds, the megabytes of the captures that it reads, and healthy verdicts."""
    for cost in scores.costs:
        yield (
            cost.check,
            str(cost.judged),
            f"{cost.seconds:.3f}",
            f"{cost.megabytes:.1f}",
            str(cost.healthy),
            str(cost.alarms),
            str(cost.inconclusive),
        )


def list_misses(scores: Scores) -> Iterator[str]:
    """Every fault of which something is not as it must be, by half."""
    for half in HALVES:
        for score in scores.faults:
            if score.half == half and score.why:
                what = "missed" if not score.detected else "misnamed"
                cause = CAUSES.get(score.slug)
                because = f" (because {cause})" if cause else ""
                yield f"{what} ({half}, {score.precision}): {score.case}: {score.why}{because}"


def list_alarms(scores: Scores) -> Iterator[str]:
    """Every healthy run that a check failed, and every one that could not be judged."""
    for score in scores.healthy:
        if score.alarms:
            cause = ALARM_CAUSES.get(score.case)
            because = f" (because {cause})" if cause else ""
            yield f"false alarm ({score.half}, {score.precision}): {score.case}: {', '.join(score.alarms)}{because}"
        if score.broken:
            yield f"not judged ({score.half}): {score.case}: {score.broken}"


def _write_markdown(scores: Scores) -> Iterator[str]:
    yield "# What the checks see"
    yield ""
    yield (
        f"Made by `python -m benchmarks.detection` with the thresholds of tolerance {VERSION}, which "
        "`python -m benchmarks.calibration` chose. Each fault of `checks/faults` is modelled on a public problem and "
        "injected into a real run of transformers' Trainer or TRL's SFTTrainer on a tiny model; each healthy run is "
        "one of the same families with other settings. Families and faults are split once "
        "(`benchmarks/detection/split.py`): every second family of the alphabet, and faults by a hash of their names, "
        "are held out. Intervals are exact (Clopper and Pearson) at 95 %. What is held out is the choice of "
        "thresholds: misses of that half have been read, and checks were written that see them, so its rates are of "
        "faults known, not of faults to come."
    )
    yield ""
    yield (
        f"Bars of the half held out, in {PRECISION}: {DETECTED:.0%} detected, {PLACED:.0%} right module or stage, "
        f"{NAMED:.0%} first-named pattern right, no false alarm."
    )
    shortfalls = scores.shortfalls()
    yield ""
    yield "They are met." if not shortfalls else "They are not met: " + "; ".join(shortfalls) + "."
    for half in HALVES:
        yield ""
        yield f"## Faults of the {half} half"
        yield ""
        yield from _write_table(COLUMNS, list_rows(scores, half))
    yield ""
    yield (
        "Detected: any check fails. Right check: one that must. Right module or stage: a failing check names it, or, "
        "where only the stage can be named, the right check fails. First-named pattern: that of the first check that "
        "fails, in reading order. A fault's pattern is that of the line that it changes on one machine, which is not "
        "always its problem's: a reduction over ranks that goes wrong is, on one rank, a wrong scale."
    )
    yield ""
    yield "## Healthy runs"
    yield ""
    yield from (f"- {line}" for line in describe_healthy(scores))
    yield from (f"- {line}" for line in list_alarms(scores))
    yield ""
    yield "Left out, because they are not healthy:"
    yield ""
    yield from (f"- {variant}, {family}: {reason}" for (variant, family), reason in LEFT_OUT.items())
    yield ""
    yield "## Missed or misnamed"
    yield ""
    yield from (f"- {line}" for line in list_misses(scores))
    yield ""
    yield "## Cost of a check"
    yield ""
    yield from _write_table(COST_COLUMNS, list_costs(scores))
    yield ""
    yield "Seconds are the judge's alone; runs and references are shared. Megabytes are those of the captures it reads."


def _write_table(columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)
