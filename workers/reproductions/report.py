"""What was shown again: a table in the terminal, a page of Markdown, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from checks.verdict import Status
from workers.report.console import clean_text
from workers.report.table import describe_status
from workers.reproductions.case import Case
from workers.reproductions.outcome import Judged, Reproduction, Side, as_document

SHOWN_PACKAGES = ("transformers", "trl", "peft", "accelerate", "ms-swift", "deepspeed", "torch")
VERSION = 1
"""of the JSON; raised when a field changes its meaning"""

HEAD = """# Known problems, shown again

Written by `plumbline reproduce --all --write docs/reproductions.md --write workers/reproductions/results.json`. Each
problem was reported in public by others, at the address beside it. What is new here: a check of Plumbline fails on the
release that has the problem, and passes on one that mended it. Both run the same case, with the releases as published,
each in an environment of its own. Every default check is judged unless a case names others; the catalogue's own
(`environment.known_problems`) never is, because this is evidence for it.

    plumbline reproduce {example}
    plumbline reproduce --list
"""


def print_list(cases: Mapping[str, Case], reasons: Mapping[str, str], *, console: Console) -> None:
    """Each problem that has a case with its releases, then those that have none with the reason."""
    table = Table(Column("problem", no_wrap=True), "fails on", "passes on", "check")
    for case in cases.values():
        fixed = name_requested(case.fixed) if case.fixed else "nothing yet"
        table.add_row(Text(case.slug), Text(name_requested(case.faulty)), Text(fixed), Text(", ".join(case.fails)))
    console.print(table)
    for slug, reason in reasons.items():
        console.print(Text.assemble(("not ", "bold"), f"{slug}: {reason}"))


def name_requested(packages: Sequence[str]) -> str:
    """The releases of an environment that the problem is about: all that were asked for but torch."""
    return ", ".join(text.replace("==", " ") for text in packages if not text.startswith("torch"))


def print_reproduction(found: Reproduction, *, console: Console) -> None:
    """The verdicts of both releases beside each other, the sentences of the expected ones, and what was unexpected."""
    console.print(Text.assemble((found.slug, "bold"), f"  {found.url}"))
    console.print(Padding(Text(found.shows), (0, 0, 0, 2)))
    table = Table("release", "check", "verdict", "what it says")
    for side in filter(None, (found.faulty, found.fixed)):
        for judged in _worth_showing(side, found):
            status = describe_status(Status(judged.status))
            table.add_row(
                Text(name_requested(side.requested)), Text(judged.check), status, Text(clean_text(judged.sentence))
            )
    console.print(table)
    if found.unfixed:
        console.print(Text(f"no fixed release: {found.unfixed}"))
    for trouble in found.troubles:
        console.print(Text.assemble(("not as expected ", "bold"), clean_text(trouble)))
    console.print(Text("reproduced" if found.reproduced else "not reproduced", style="bold"))


def _worth_showing(side: Side, found: Reproduction) -> Sequence[Judged]:
    """The expected checks, and whatever else failed or is in error."""
    bad = (Status.FAIL.value, Status.ERROR.value)
    return [each for each in side.verdicts if each.check in found.expected or each.status in bad]


def render_markdown(found: Sequence[Reproduction], *, cases: Mapping[str, Case], reasons: Mapping[str, str]) -> str:
    """The page: a table of all, then each with its releases, figures and sentences, then what was not shown."""
    shown = [each for each in found if each.reproduced]
    fixed = sum(each.fixed is not None for each in shown)
    lines = [HEAD.format(example=found[0].slug if found else "SLUG"), ""]
    lines.append(
        f"{len(shown)} of {len(cases)} cases: {fixed} fail on the faulty and pass on the fixed release; "
        f"no release mends the other {len(shown) - fixed}."
    )
    lines += ["", "| problem | faulty | fixed | checks | date |", "| --- | --- | --- | --- | --- |"]
    for each in shown:
        mended = "none" if each.fixed is None else name_requested(each.fixed.requested)
        lines.append(
            f"| [{each.slug}]({each.url}) | {name_requested(each.faulty.requested)} | {mended} | "
            f"{', '.join(each.expected)} | {each.date[:10]} |"
        )
    for each in shown:
        lines += ["", f"## {each.slug}", "", *_render_one(each)]
    lines += ["", "## Not shown again", ""]
    lines += [f"- {each.slug}: {'; '.join(each.troubles)}" for each in found if not each.reproduced]
    done = {each.slug for each in found}
    lines += [f"- {slug}: not run yet" for slug in cases if slug not in done]
    lines += [f"- {slug}: {reason}" for slug, reason in reasons.items()]
    return "\n".join(lines) + "\n"


def _render_one(found: Reproduction) -> list[str]:
    lines = [f"{found.shows} {found.url}", ""]
    for which, side in (("faulty", found.faulty), ("fixed", found.fixed)):
        if side is None:
            lines.append(f"- fixed: none; {found.unfixed}")
            continue
        releases = ", ".join(f"{name} {side.packages[name]}" for name in SHOWN_PACKAGES if name in side.packages)
        counts = _count(side)
        lines.append(f"- {which}: {releases}; {side.seconds:.0f} s; {counts}")
        for judged in _worth_showing(side, found):
            figures = f" ({judged.figures[0]})" if judged.figures else ""
            why = f" Expected: {found.also[judged.check]}" if which == "fixed" and judged.check in found.also else ""
            lines.append(f"  - `{judged.check}` **{judged.status}**: {_one_line(judged.sentence)}{figures}{why}")
    return lines


def _count(side: Side) -> str:
    named = ((status.value, sum(each.status == status.value for each in side.verdicts)) for status in Status)
    return ", ".join(f"{count} {name}" for name, count in named if count)


def _one_line(text: str) -> str:
    return clean_text(" ".join(text.split()))


def render_all(found: Sequence[Reproduction], *, cases: Mapping[str, Case], reasons: Mapping[str, str]) -> str:
    """All of it as JSON, for a problem's page; what was not expected of a check is left out unless it failed."""
    documents = [as_document(each) for each in found]
    whole = {"format": VERSION, "reproductions": documents, "not_reproduced": dict(reasons)}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
