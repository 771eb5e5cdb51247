"""What a report says, whatever its tracker wants it in: values, and the Markdown of each part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SCRIPT, OUTPUT, VERSIONS, PLOT = "[[script]]", "[[output]]", "[[versions]]", "[[plot]]"
"""Marks in a report's text for what is put in when it is shown: the script and its last run change after it."""

MOST_NUMBERS = 12
"""Rows of numbers in the text; data.csv has all."""


@dataclass(frozen=True)
class Number:
    """One number that was compared; `allowed`: what the error may not exceed, `floor`: noise of the reference."""

    name: str
    error: Any
    allowed: Any
    floor: Any
    unit: str


@dataclass(frozen=True)
class Content:
    """Everything that is known about a fault, in Markdown; empty texts are left out."""

    title: str
    summary: str
    expected: str
    observed: str
    numbers: tuple[Number, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    cause: str = ""
    context: str = ""
    limits: str = ""
    """what was and what was not verified"""
    has_plot: bool = False


def show_number(value: Any) -> str:
    """Four digits; JSON has no infinities, so that they come as texts."""
    if isinstance(value, bool) or value is None:
        return "–"
    if isinstance(value, (int, float)):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)


def escape_cell(text: str) -> str:
    """A text that stands in one cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def write_numbers(content: Content) -> str:
    """The table of numbers, those that do not hold first."""
    if not content.numbers:
        return ""
    rows = ["| what | error | allowed | noise of the reference | unit |", "| --- | ---: | ---: | ---: | --- |"]
    for number in content.numbers[:MOST_NUMBERS]:
        values = (show_number(value) for value in (number.error, number.allowed, number.floor))
        rows.append(f"| {escape_cell(number.name)} | {' | '.join(values)} | {escape_cell(number.unit)} |")
    left = len(content.numbers) - MOST_NUMBERS
    return "\n".join(rows) + (f"\n\nand {left} more, in data.csv" if left > 0 else "")


def write_settings(content: Content) -> str:
    return "\n".join(f"- `{name}`: {value}" for name, value in content.settings)


def write_comparison(content: Content) -> str:
    """Expected against observed."""
    return f"Expected: {content.expected}\n\nObserved: {content.observed}"


def titled(title: str, text: str) -> str:
    """A part with its own small title, or nothing where there is nothing to say."""
    return f"**{title}**\n\n{text}" if text else ""


WRITERS: Mapping[str, Callable[[Content], str]] = {
    "summary": lambda content: content.summary,
    "comparison": write_comparison,
    "expected": lambda content: content.expected,
    "observed": lambda content: content.observed,
    "numbers": lambda content: titled("Numbers", write_numbers(content)),
    "plot": lambda content: PLOT if content.has_plot else "",
    "settings": lambda content: titled("Settings", write_settings(content)),
    "cause": lambda content: titled("Suspected cause", content.cause),
    "context": lambda content: titled("Known elsewhere", content.context),
    "limits": lambda content: titled("What was run, and what was not", content.limits),
    "versions": lambda content: VERSIONS,
    "script": lambda content: f"`reproduce.py` runs by itself and exits 1 where the result is wrong:\n\n{SCRIPT}",
    "output": lambda content: f"Its output:\n\n{OUTPUT}",
    "own script": lambda content: "- [ ] The official example scripts\n- [x] My own modified scripts",
    "own task": lambda content: "- [ ] An officially supported task in the `examples` folder\n- [x] My own task",
    "nobody": lambda content: "_nobody in particular_",
    "searched": lambda content: "- [ ] I have searched existing issues, and this is a new bug report.",
}
"""part → its Markdown; `trackers.py` puts them together"""


def write_body(content: Content, sections: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    """The text of a report in a tracker's own order: heading → parts; a section of empty parts is left out."""
    written = []
    for heading, parts in sections:
        texts = [text for part in parts if (text := WRITERS[part](content))]
        if texts:
            written.append("\n\n".join([f"### {heading}", *texts]))
    return "\n\n".join(written) + "\n"
