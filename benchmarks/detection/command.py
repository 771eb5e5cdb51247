"""The command: choose cases, run what has no result yet, score, and write the documents."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.detection.case import Case
from benchmarks.detection.faulty import list_faulty
from benchmarks.detection.healthy import list_healthy
from benchmarks.detection.report import print_report, write_documents
from benchmarks.detection.result import CaseResult, read_results
from benchmarks.detection.running import import_everything, run_cases
from benchmarks.detection.score import Scores, score
from checks.errors import BadRequest
from workers.request import BAD_REQUEST

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = "results.jsonl"


def main(arguments: Sequence[str]) -> int:
    """Return 0 where the bars of `Scores.shortfalls` are met, 1 where they are not, 3 for a bad request."""
    options = _parse(arguments)
    try:
        cases = choose_cases(tuple(options.only or ()))
        scores, complete = _run(cases, options)
    except BadRequest as error:
        sys.stderr.write(f"benchmarks.detection: {error}\n")
        return BAD_REQUEST
    console = Console(width=150)
    print_report(scores, console)
    if complete and not options.only:
        write_documents(scores, DOCS)
    return 1 if scores.shortfalls() else 0


def choose_cases(only: Sequence[str]) -> tuple[Case, ...]:
    """Every case, or those whose name holds one of `only`.

    Raises:
        BadRequest: nothing has such a name.
    """
    cases = (*list_faulty(), *list_healthy())
    if not only:
        return cases
    for part in only:
        if not any(part in case.name for case in cases):
            raise BadRequest("only", f"no case has {part!r} in its name", "name a fault, or a healthy variant's shape")
    return tuple(case for case in cases if any(part in case.name for part in only))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="cases whose name holds this (repeatable)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where results are kept (default: a new directory)")
    parser.add_argument("--resume", action="store_true", help="run only what DIR has no result of, or what broke")
    parser.add_argument("--keep", action="store_true", help="keep each case's captures and logs in DIR")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="cases at once (default: %(default)s)")
    return parser.parse_args(arguments)


def _run(cases: Sequence[Case], options: argparse.Namespace) -> tuple[Scores, bool]:
    out = options.out or Path(tempfile.mkdtemp(prefix="plumbline-detection-"))
    file = out / RESULTS
    if file.exists() and not options.resume:
        raise BadRequest("out", f"{file} exists", "add --resume, or name a new directory")
    out.mkdir(parents=True, exist_ok=True)
    found = read_results(file)
    left = [case for case in cases if case.name not in found or found[case.name].broken is not None]
    started = time.monotonic()
    if left:
        import_everything(case.family for case in left)
    with file.open("a") as lines:
        if file.stat().st_size:
            lines.write("\n")  # after a line that was cut short; an empty one is nothing
        for number, result in enumerate(
            run_cases(left, directory=out / "cases", at_once=options.cores, keep=options.keep), 1
        ):
            lines.write(result.to_line() + "\n")
            lines.flush()
            found[result.case] = result
            _say(number, len(left), result, time.monotonic() - started)
    if not options.keep:
        shutil.rmtree(out / "cases", ignore_errors=True)
    results = {case.name: found[case.name] for case in cases}
    return score(cases, results), len(results) == len(cases)


def _say(number: int, total: int, result: CaseResult, elapsed_s: float) -> None:
    failed = ", ".join(check.check for check in result.failures) or "nothing fails"
    what = result.broken or failed
    print(f"{number}/{total} {elapsed_s:.0f} s {result.case}: {what}", flush=True)
