"""How far healthy runs lie under the threshold, and faults over it: `python -m benchmarks.calibration [--json FILE]`.

The multiples of checks/tolerance.py were chosen on one half of the families and faults and are scored on the other
half. Healthy
evidence: the family's transformers model in the run's own precision, in forms that the floor was not measured on; a
form that is bitwise equal to one of the floor's does not count. Faults: changes of the model, the labels or the
count, of one kind each."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.calibration.cases import faults, healthy, make_bench
from checks.models import FAMILIES
from checks.spec import Precision
from checks.tolerance import MULTIPLES, VERSION


@dataclass(frozen=True)
class Score:
    """One run against the rule: `ratio` is its largest error in *floors*, so it alarms when above the multiple."""

    family: str
    case: str
    faulty: bool
    precision: Precision
    ratio: float


def measure(family: str, precision: Precision) -> Iterator[Score]:
    """Scores of every healthy form that is not a repeat, and of every fault that the family can have."""
    bench = make_bench(family, precision)
    for case, result in healthy(bench):
        if not bench.repeats(result):
            yield Score(family, case, False, precision, bench.ratio(result))
    for case, result in faults(bench):
        yield Score(family, case, True, precision, bench.ratio(result))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson, 1927, doi:10.1080/01621459.1927.10502953)."""
    if total == 0:
        return 0.0, 1.0
    z, p = 1.959964, hits / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def split(scores: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """Calibration and test half: by family for healthy runs, by family and kind of fault for faulty ones."""
    families = sorted({score.family for score in scores})
    kinds = sorted({score.case for score in scores if score.faulty})
    first, second = [], []
    for score in scores:
        odd = families.index(score.family) % 2
        if not score.faulty or kinds.index(score.case) % 2 == odd:
            (second if odd else first).append(score)
    return first, second


def report(scores: Sequence[Score], console: Console) -> None:
    for precision in dict.fromkeys(score.precision for score in scores):
        multiple = MULTIPLES[precision]
        table = Table(title=f"{precision}: errors in floors; the threshold is {multiple:g} (tolerance {VERSION})")
        for column in ("half", "healthy runs", "largest", "false alarms", "faults", "smallest", "detected"):
            table.add_column(column, justify="right")
        own = [score for score in scores if score.precision == precision]
        for name, half in zip(("calibration", "test"), split(own), strict=True):
            sound = [s.ratio for s in half if not s.faulty]
            wrong = [s.ratio for s in half if s.faulty]
            alarms, hits = sum(r > multiple for r in sound), sum(r > multiple for r in wrong)
            table.add_row(
                name,
                str(len(sound)),
                f"{max(sound, default=0.0):.3g}",
                _rate(alarms, len(sound)),
                str(len(wrong)),
                f"{min(wrong, default=0.0):.3g}",
                _rate(hits, len(wrong)),
            )
        console.print(table)
        missed = [s for s in own if s.faulty and s.ratio <= multiple]
        for score in sorted(missed, key=lambda s: (s.case, s.family)):
            console.print(f"  not seen: {score.case} on {score.family} ({score.ratio:.2g} floors)")


def _rate(hits: int, total: int) -> str:
    low, high = wilson(hits, total)
    return f"{hits}/{total} (95 %: {low:.0%} to {high:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write every score")
    parser.add_argument("--precision", action="append", choices=("float32", "bf16", "bf16_params"))
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    scores = [
        score
        for precision in options.precision or ("float32", "bf16")
        for family in options.family or sorted(FAMILIES)
        for score in measure(family, precision)
    ]
    report(scores, Console(width=140))
    if options.json is not None:
        options.json.write_text(json.dumps([vars(score) for score in scores], indent=1))


if __name__ == "__main__":
    main()
