"""The command: record what has no result yet, match, print, and write the documents."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.matching.findings import FILE, list_cases, read_findings, record_findings
from benchmarks.matching.report import print_report, write_documents
from benchmarks.matching.score import score
from checks.errors import BadRequest
from workers.request import BAD_REQUEST

DOCS = Path(__file__).parents[2] / "docs"


def main(arguments: Sequence[str]) -> int:
    """Return 0 where the bars of `Scores.shortfalls` are met, 1 where they are not, 3 for a bad request."""
    options = _parse(arguments)
    out = options.out or Path(tempfile.mkdtemp(prefix="plumbline-matching-"))
    try:
        if (out / FILE).exists() and not options.resume:
            raise BadRequest("out", f"{out / FILE} exists", "add --resume, or name a new directory")
        cases = list_cases(tuple(options.only or ()))
        for seed in range(options.seeds):
            for found in record_findings(cases, out, seed=seed, at_once=options.cores):
                failed = ", ".join(each["check"] for each in found.failures) or "nothing fails"
                print(f"{found.case} (seed {seed}): {found.broken or failed}", flush=True)
        recorded = read_findings(out / FILE)
    except BadRequest as error:
        sys.stderr.write(f"benchmarks.matching: {error}\n")
        return BAD_REQUEST
    shutil.rmtree(out / "cases", ignore_errors=True)
    scores = score(cases, recorded)
    print_report(scores, Console(width=150))
    if not options.only and all((case.name, 0) in recorded for case in cases):
        write_documents(scores, DOCS)
    return 1 if scores.shortfalls() else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matching", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="faults whose name holds this (repeatable)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where findings are kept (default: a new directory)")
    parser.add_argument("--resume", action="store_true", help="run only what DIR has no finding of, or what broke")
    parser.add_argument("--cores", type=int, default=1, help="runs at once (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs of each fault; from the second on, signatures are compared"
    )
    return parser.parse_args(arguments)
