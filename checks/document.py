"""The page of all checks, made of their docstrings, which are the only place where a check is described."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from checks.check import Check
from checks.registry import DEFAULT_CHECKS, by_level
from checks.roles import Role

PARAGRAPHS = ("Reference", "Catches", "Cannot see", "Cost")
"""How the paragraphs of a check's description begin, in their order."""

_PARAGRAPH = re.compile(rf"\n+({'|'.join(PARAGRAPHS)}):")

_RUNS = {
    Role.MERGED: "the same rows as one batch",
    Role.RESUMED: "the run saved and resumed",
    Role.PROBED: "the prepared model on chosen batches",
    Role.SINGLE: "the rows of all ranks in one process",
    Role.OVERFIT: "one batch again and again",
    Role.MEASURED: "the run with its memory counted",
    Role.TRACED: "the first step with its modules recorded",
}


def render_checks() -> str:
    """The whole page in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Checks"
    yield ""
    yield "Made of the checks' own docstrings by `plumbline checks document`. Those marked ● are judged by default; the"
    yield "others take further runs of the framework, and are asked for by name, by level or with `--checks all`."
    for level, checks in by_level().items():
        yield ""
        yield f"## {level}"
        for check in checks:
            yield ""
            yield from _describe(check)


def _describe(check: Check) -> Iterator[str]:
    yield f"### {check.name}{' ●' if check.name in DEFAULT_CHECKS else ''}"
    yield ""
    yield _PARAGRAPH.sub(r"\n\n**\1.**", inspect.cleandoc(check.description))
    beside = [words for role, words in _RUNS.items() if role in check.roles]
    if beside:
        yield ""
        yield f"**Runs.** The asked run, and {', and '.join(beside)}."


def read_paragraph(description: str, head: str) -> str:
    """The sentence after `Catches:` or `Cost:` in a check's description, on one line; empty where there is none.

    >>> read_paragraph("A claim.\\n\\nCatches: this,\\nand that.\\nCost: nothing.", "Catches")
    'this, and that.'
    >>> read_paragraph("Reference: told\\napart: both.\\nCatches: this.", "Reference")
    'told apart: both.'
    """
    following = "|".join(PARAGRAPHS)
    found = re.search(
        rf"^{re.escape(head)}: (.+?)(?=\n(?:{following}): |\n\n|\Z)", description, re.MULTILINE | re.DOTALL
    )
    return " ".join(found[1].split()) if found else ""
