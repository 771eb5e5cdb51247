"""What came of one case, as it is kept in the results' JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.verdict import Pattern, Status


@dataclass(frozen=True)
class CheckResult:
    """One check's verdict, with what it cost: the judge's seconds, and the megabytes of the captures that it reads."""

    check: str
    status: str
    sentence: str
    pattern: str | None
    first_wrong: str | None
    seconds: float
    megabytes: float

    @property
    def failed(self) -> bool:
        return self.status == Status.FAIL.value

    @property
    def named(self) -> Pattern | None:
        """The pattern that a failure names."""
        return None if self.pattern is None else Pattern(self.pattern)


@dataclass(frozen=True)
class CaseResult:
    """One case's verdicts in reading order. `broken`: why the case has none; `took_effect`: what the fault's own
    marker says; `fingerprint`: equal for runs that computed bitwise the same.
    """

    case: str
    took_effect: bool | None
    fingerprint: str | None
    checks: tuple[CheckResult, ...]
    seconds_recording: float
    seconds_reference: float
    seconds: float
    broken: str | None = None

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.failed)

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def read_results(file: Path) -> dict[str, CaseResult]:
    """Case → its latest result. A line cut short by the end of an earlier run is left out.

    Raises:
        BadRequest: the file holds something else than results.
    """
    if not file.is_file():
        return {}
    return {result.case: result for result in _read_lines(file)}


def _read_lines(file: Path) -> Iterator[CaseResult]:
    lines = file.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield parse_result(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                continue  # a killed run's last line, and what a resumed one wrote after it is on lines of its own
        except (KeyError, TypeError) as error:
            found = f"line {number} of {file} is no result ({error})"
            raise BadRequest("out", found, "name another directory, or one of this benchmark") from error


def parse_result(content: dict[str, Any]) -> CaseResult:
    """The result that `CaseResult.to_line` wrote."""
    return CaseResult(**{**content, "checks": tuple(CheckResult(**check) for check in content["checks"])})
