"""The figures on the console, and as docs/matching.json and docs/matching.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.detection.split import HALVES, Half
from benchmarks.matching.causes import CAUSES
from benchmarks.matching.score import FIRST, FIRST_BAR, FIVE, FIVE_BAR, FaultMatch, Scores, rate_of
from benchmarks.matching.views import KNOWLEDGE, Asked, View
from checks.verdict import Pattern

COLUMNS = ("pattern", "faults", "first right", "first five right", "first of its kind", "first five of its kind")
VIEW_COLUMNS = ("finding", "told", "used", *COLUMNS[1:])
TEXT = Path(__file__).with_name("text.md")


def print_report(scores: Scores, console: Console) -> None:
    """Both halves by pattern, what each view and each piece of knowledge gives, and every miss with its reason."""
    for half in HALVES:
        table = Table(*COLUMNS, title=f"{half} half, {View.MODELLED.value}")
        for row in list_rows(scores, half):
            table.add_row(*row)
        console.print(table)
        table = Table(*VIEW_COLUMNS, title=f"{half} half")
        for row in list_views(scores, half):
            table.add_row(*row)
        console.print(table)
    for line in (*list_misses(scores), *describe_runs(scores)):
        console.print(line, markup=False, highlight=False)
    for asked in Asked:
        for line in scores.shortfalls(asked):
            console.print(f"SHORT ({asked.value}): {line}", markup=False, highlight=False)


def write_documents(scores: Scores, directory: Path) -> None:
    """Write matching.json (every place) and matching.md (the text and the tables)."""
    content = {
        "matches": [_to_json(each) for each in scores.matches],
        "without_problem": scores.without_problem,
        "not_in_force": scores.not_in_force,
        "stability": asdict(scores.stability),
        "recognition": asdict(scores.recognition),
        "shortfalls": {asked.value: scores.shortfalls(asked) for asked in Asked},
    }
    (directory / "matching.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (directory / "matching.md").write_text("\n".join(_write_markdown(scores)) + "\n")


def _to_json(each: FaultMatch) -> dict[str, object]:
    """Without the time, which is another one with each run; with suggestions and reasons where they are the figure."""
    flat = {**asdict(each), **asdict(each.placed)}
    figure = (each.view, each.asked, each.knowledge) == (View.MODELLED, Asked.RIGHT, KNOWLEDGE[0].name)
    left_out = ("placed", "seconds") if figure else ("placed", "seconds", "shown", "reasons")
    return {name: value for name, value in flat.items() if name not in left_out}


def list_rows(scores: Scores, half: Half) -> Iterator[tuple[str, ...]]:
    """One row a pattern, then all of them."""
    for pattern in Pattern:
        yield (pattern.value, *_cells(scores.of(half, View.MODELLED, pattern)))
    yield ("all", *_cells(scores.of(half, View.MODELLED)))


def list_views(scores: Scores, half: Half) -> Iterator[tuple[str, ...]]:
    """One row for each way to ask, with all that the matcher may use, then for each piece of it that is left out."""
    for asked in Asked:
        for view in View:
            yield (asked.value, view.value, KNOWLEDGE[0].name, *_cells(scores.of(half, view, asked=asked)))
    for view in View:
        for knowledge in KNOWLEDGE[1:]:
            matches = scores.of(half, view, knowledge=knowledge.name)
            yield (Asked.RIGHT.value, view.value, knowledge.name, *_cells(matches))
    yield list_guesses(scores, half)


def list_guesses(scores: Scores, half: Half) -> tuple[str, ...]:
    """What guessing among the problems of the framework would give, in the columns of list_views."""
    matches = scores.of(half, View.MODELLED)
    counts = [each.rivals for each in matches]
    rates = [sum(min(1.0, count / rivals) for rivals in counts) / max(len(counts), 1) for count in (FIRST, FIVE)]
    return ("", View.MODELLED.value, "a guess", str(len(matches)), *(f"{rate:.1%}" for rate in rates), "", "")


def _cells(matches: Sequence[FaultMatch]) -> tuple[str, ...]:
    return (
        str(len(matches)),
        str(rate_of(each.within(FIRST) for each in matches)),
        str(rate_of(each.within(FIVE) for each in matches)),
        str(rate_of(each.kin_within(FIRST) for each in matches)),
        str(rate_of(each.kin_within(FIVE) for each in matches)),
    )


def list_misses(scores: Scores) -> Iterator[str]:
    """Every fault whose problem is not the first suggestion, with what was and why."""
    for half in HALVES:
        for each in scores.of(half, View.MODELLED):
            if not each.within(FIRST):
                yield f"{half}: {each.slug} → {each.problem}: {_explain(each)}"


def _explain(each: FaultMatch) -> str:
    placed = each.placed
    if not placed.shown:
        return "no check fails"
    place = f"place {placed.place}" if placed.place is not None else "not among the problems that were looked at"
    kin = "" if not each.kin_within(FIRST) else ", which is of the same recurrence group"
    cause = f" (because {CAUSES[each.slug]})" if each.slug in CAUSES else ""
    return f"{place} of {placed.check}; {placed.shown[0]} comes first{kin}{cause}"


def describe_runs(scores: Scores) -> Iterator[str]:
    """What could not count, how stable signatures are, and how long a finding takes."""
    if scores.without_problem:
        yield f"{len(scores.without_problem)} faults are modelled on no problem of the catalogue and are left out"
    if scores.not_in_force:
        yield f"never in force, and left out: {', '.join(scores.not_in_force)}"
    found = scores.stability
    if found.compared:
        yield f"{found.equal} of {found.compared} failing verdicts have the same signature with another seed"
        yield from (f"another signature with another seed: {line}" for line in found.changed)
    again = scores.recognition
    if again.asked:
        yield (
            f"once the findings of the first runs were decided, {again.right} of {again.asked} findings of runs with "
            "another seed have their problem as the first suggestion"
        )
        yield from (f"decided, and not first: {line}" for line in again.wrong)
    seconds = [each.placed.seconds for each in scores.matches if each.placed.shown]
    if seconds:
        middle, most = median(seconds) * 1e3, max(seconds) * 1e3
        yield f"a finding takes {middle:.0f} ms of one core (median), {most:.0f} ms at most"


def _write_markdown(scores: Scores) -> Iterator[str]:
    yield TEXT.read_text().rstrip("\n")
    yield ""
    yield "## Figures"
    yield ""
    yield (
        f"Wanted of the held-out half, told the framework of the problem: {FIRST_BAR:.0%} first right, {FIVE_BAR:.0%} "
        "among the first five."
    )
    yield ""
    for asked in Asked:
        shortfalls = scores.shortfalls(asked)
        said = "both are met" if not shortfalls else "; ".join(shortfalls)
        yield f"- asked about the finding of {asked.value}: {said}"
    for half in reversed(HALVES):
        yield ""
        yield f"### The {half} half"
        yield ""
        yield from _write_table(COLUMNS, list_rows(scores, half))
        yield ""
        yield from _write_table(VIEW_COLUMNS, list_views(scores, half))
    yield ""
    yield "### Not the first suggestion"
    yield ""
    yield from (f"- {line}" for line in list_misses(scores))
    yield ""
    yield "### Runs"
    yield ""
    yield from (f"- {line}" for line in describe_runs(scores))


def _write_table(columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)
