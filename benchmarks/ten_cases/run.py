"""Running the cases under the recorder, two processes at a time, and judging what they left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ten_cases.cases import BASELINE, SCRIPT, Case
from benchmarks.ten_cases.judge import Judgement, judge
from benchmarks.ten_cases.rules import RULES
from benchmarks.ten_cases.tensors import STEP, Tensors, read_tensors
from checks.captures.capture import Capture, open_capture
from checks.errors import CaptureError
from checks.models import resolve_model
from workers.frameworks.base import Launch
from workers.frameworks.interpreter import framework_python
from workers.runner import run_framework

MODEL = "tiny:llama"
PROCESSES = 2
TIME_LIMIT_S = 120.0
RECORD_AGAIN = "run the benchmark again and read the log that is named"


@dataclass(frozen=True)
class Row:
    """One case as everybody sees it. `size`: the largest relative error of a tensor against the baseline, by norm;
    `alarms`: rule → the tensors that it calls wrong, in order."""

    case: Case
    size: float
    loss_error: float
    alarms: Mapping[str, tuple[str, ...]]
    judgement: Judgement


def run_cases(cases: Sequence[Case], workspace: Path, *, on_progress: Callable[[str], None]) -> tuple[Row, ...]:
    """Run the baseline and every case in `workspace`, and judge each by every rule and by Plumbline's checks."""
    model = resolve_model(MODEL)
    variants = {"baseline": BASELINE, **{case.slug: case.variant for case in cases}}

    def record(slug: str) -> Capture:
        capture = _record(slug, variants[slug], model.path, workspace)
        on_progress(f"{slug}: recorded")
        return capture

    with ThreadPoolExecutor(PROCESSES) as pool:
        captures = dict(zip(variants, pool.map(record, variants), strict=True))
    baseline = read_tensors(captures["baseline"])
    rows = []
    for case in cases:
        judgement = judge(case, captures[case.slug], checkpoint=model.path, data=workspace / "random-tokens")
        rows.append(_compare(case, read_tensors(captures[case.slug]), baseline, judgement))
        on_progress(f"{case.slug}: judged")
    return tuple(rows)


def _compare(case: Case, tensors: Tensors, baseline: Tensors, judgement: Judgement) -> Row:
    sizes = [float((a.double() - b.double()).norm() / b.double().norm()) for _, a, b in tensors.pairs(baseline)]
    loss_error = abs(float(tensors.loss) / float(baseline.loss) - 1.0)
    return Row(case, max(sizes), loss_error, {name: rule(tensors, baseline) for name, rule in RULES.items()}, judgement)


def _record(slug: str, variant: str, checkpoint: Path, workspace: Path) -> Capture:
    """Run step.py once under the recorder, every module's input and output kept whole."""
    scratch = workspace / "scratch" / slug
    launch = Launch((framework_python(), str(SCRIPT), str(checkpoint), variant), {}, None, scratch)
    run = run_framework(
        launch,
        out=workspace / "captures" / slug,
        scratch=scratch,
        log=workspace / "logs" / f"{slug}.log",
        steps=(STEP,),
        full=True,
        modules=".+",
        time_limit_s=TIME_LIMIT_S,
        memory_limit_bytes=None,
        on_line=lambda line: None,
        cancelled=lambda: False,
    )
    if run.ending != "completed" or run.capture is None:
        found = f"{slug} {run.ending} ({run.last_error or f'exit code {run.exit_code}'})"
        raise CaptureError(str(run.log), found, RECORD_AGAIN)
    capture = open_capture(run.capture)
    if capture.missing:
        raise CaptureError(str(run.capture), f"lacks {capture.missing[0].what}", RECORD_AGAIN)
    return capture
