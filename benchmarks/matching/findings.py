"""The failing verdicts of every fault's run, recorded once and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.detection.case import Case
from benchmarks.detection.faulty import list_faulty
from benchmarks.detection.judging import FAILURES
from benchmarks.detection.running import import_everything, run_cases
from checks.errors import BadRequest

FILE = "findings.jsonl"


@dataclass(frozen=True)
class Recorded:
    """One fault's run with one seed. `failures`: its failing verdicts (docs/json.md) in reading order."""

    case: str
    seed: int
    took_effect: bool
    broken: str | None
    failures: tuple[Mapping[str, Any], ...]

    @property
    def first(self) -> Mapping[str, Any] | None:
        """The verdict that a person sees first: the first that names a pattern, as benchmarks.detection has it."""
        return next((each for each in self.failures if each["pattern"]), next(iter(self.failures), None))

    def of_checks(self, names: Sequence[str]) -> Mapping[str, Any] | None:
        """The verdict of the first of the checks that fails, else the first verdict."""
        by_check = {each["check"]: each for each in self.failures}
        return next((by_check[name] for name in names if name in by_check), self.first)


def list_cases(only: Sequence[str] = ()) -> tuple[Case, ...]:
    """The cases of benchmarks.detection with a fault, or those whose name holds one of `only`.

    Raises:
        BadRequest: none has such a name.
    """
    cases = list_faulty()
    for part in only:
        if not any(part in case.name for case in cases):
            raise BadRequest("only", f"no case has {part!r} in its name", "name a fault")
    return tuple(case for case in cases if not only or any(part in case.name for part in only))


def record_findings(cases: Sequence[Case], directory: Path, *, seed: int, at_once: int) -> Iterator[Recorded]:
    """Run what has no result yet below `directory`, append each to its file as it ends, and give it."""
    file = directory / FILE
    known = read_findings(file)
    left = [case for case in cases if (case.name, seed) not in known or known[case.name, seed].broken is not None]
    if not left:
        return
    directory.mkdir(parents=True, exist_ok=True)
    import_everything(case.family for case in left)
    seeded = [replace(case, settings=(*case.settings, f"seed={seed}")) if seed else case for case in left]
    with file.open("a") as lines:
        for result in run_cases(seeded, directory=directory / "cases", at_once=at_once, keep=False):
            kept = directory / "cases" / result.case.replace("/", "-") / FAILURES
            documents = json.loads(kept.read_text()) if kept.is_file() else {}
            failures = tuple(documents[check.check] for check in result.failures if check.check in documents)
            found = Recorded(result.case, seed, result.took_effect is True, result.broken, failures)
            lines.write(json.dumps(found.__dict__) + "\n")
            lines.flush()
            yield found


def read_findings(file: Path) -> dict[tuple[str, int], Recorded]:
    """(case, seed) → its latest result; a last line that was cut short is left out.

    Raises:
        BadRequest: the file holds something else.
    """
    found: dict[tuple[str, int], Recorded] = {}
    lines = file.read_text().split("\n") if file.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            content = json.loads(line)
            each = Recorded(**{**content, "failures": tuple(content["failures"])})
        except json.JSONDecodeError:
            if number == len(lines):
                continue
            raise BadRequest("out", f"line {number} of {file} is no JSON", "name a directory of its own") from None
        except (KeyError, TypeError):
            raise BadRequest("out", f"line {number} of {file} is no finding", "name a directory of its own") from None
        found[each.case, each.seed] = each
    return found
