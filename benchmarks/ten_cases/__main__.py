"""`python -m benchmarks.ten_cases`: run the ten cases and print who is right about which."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.ten_cases.cases import CASES, find_cases
from benchmarks.ten_cases.run import Row, run_cases
from benchmarks.ten_cases.table import build_table, list_differences, to_json
from checks.errors import BadRequest, CaptureError

WIDTH = 250
"""columns where the output is no terminal: the table has thirteen columns"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when Plumbline is right about every case, 1 when not, 3 for a bad request."""
    options = _parse(arguments)
    torch.set_num_threads(1)  # on a tiny model two threads cost twenty times what they give
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    progress = Console(stderr=True)
    try:
        cases = find_cases(tuple(options.cases.split(",")) if options.cases else None)
        with tempfile.TemporaryDirectory(prefix="plumbline-ten-cases-") as temporary:
            rows = run_cases(cases, Path(temporary), on_progress=lambda text: progress.print(text, style="dim"))
    except (BadRequest, CaptureError) as error:
        progress.print(str(error), style="red")
        return 3 if isinstance(error, BadRequest) else 1
    console.print(build_table(rows))
    for sentence in list_differences(rows):
        console.print(f"≠ {sentence}", style="dim", markup=False)
    code = decide_exit_code(rows)
    right = sum(row.judgement.right for row in rows)
    console.print(f"Plumbline: {right} of {len(rows)} right", style="bold red" if code else "bold green")
    if options.json is not None:
        options.json.write_text(json.dumps(to_json(rows), indent=2) + "\n")
    return code


def decide_exit_code(rows: Sequence[Row]) -> int:
    """0 when Plumbline is right about every case, and about one at least; else 1."""
    return 0 if rows and all(row.judgement.right for row in rows) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ten_cases", description=__doc__)
    known = ",".join(case.slug for case in CASES)
    parser.add_argument("--cases", metavar="SLUG,…", help=f"only these, of {known}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
