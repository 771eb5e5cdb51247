"""The cells of a matrix, and what is kept of each: a file a cell, so that a broken-off matrix goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from workers.report import write_whole

REFUSED = "skipped"
ORDER = ("error", "fail", "inconclusive", "pass", REFUSED)
"""what a cell is called after: the first that one of its verdicts has"""


@dataclass(frozen=True)
class Cell:
    """One validation of the matrix."""

    framework: str
    model: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.framework}-{self.model.removeprefix('tiny:')}-{self.precision}"


@dataclass(frozen=True)
class Outcome:
    """What a cell came to. `reasons`: a sentence for each verdict that is neither pass nor skipped, by its check."""

    cell: Cell
    status: str
    passed: int
    reasons: Mapping[str, str]
    seconds: float
    packages: Mapping[str, str]
    refused: bool = False
    """nothing ran: the framework was not installed then, or cannot do what the cell asks"""


def list_cells(frameworks: Sequence[str], models: Sequence[str], precisions: Sequence[str]) -> tuple[Cell, ...]:
    """All cells, a framework's together: its environment and its imports are then warm."""
    return tuple(Cell(*parts) for parts in product(frameworks, models, precisions))


def keep_result(file: Path, document: Mapping[str, Any]) -> None:
    """Keep a validation's whole result."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def keep_refusal(file: Path, refused: BadRequest) -> None:
    """Keep the sentence with which a cell was refused before anything ran."""
    keep_result(file, {"refused": str(refused)})


def read_outcome(cell: Cell, file: Path) -> Outcome | None:
    """What is kept of a cell; None where nothing is.

    Raises:
        BadRequest: the file is something else.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if "refused" in document:
            return Outcome(cell, REFUSED, 0, {"request": document["refused"]}, 0.0, {}, refused=True)
        verdicts = [(each["check"], each["status"], each["sentence"]) for each in document["verdicts"]]
        total, packages = float(document["total_s"]), document["environment"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        found = f"{file} is no result of a cell ({type(error).__name__}: {error})"
        raise BadRequest("out", found, "remove that file, or name another directory") from None
    statuses = {status for _, status, _ in verdicts}
    return Outcome(
        cell,
        next((status for status in ORDER if status in statuses), REFUSED),
        sum(status == "pass" for _, status, _ in verdicts),
        {check: sentence for check, status, sentence in verdicts if status not in ("pass", "skipped")},
        total,
        packages,
    )
