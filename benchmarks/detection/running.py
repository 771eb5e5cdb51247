"""Running many cases: this process has everything imported and forks a child a case, as many at once as cores."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.detection.case import Case
from benchmarks.detection.forking import POLL_S, TIMED_OUT, end_group, fork, read_exit
from benchmarks.detection.judging import run_case
from benchmarks.detection.result import CaseResult, parse_result
from checks.models import resolve_model

PRELOADED = (
    "transformers.models.auto.modeling_auto",
    "transformers.trainer",
    "transformers.data.data_collator",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "checks.registry",
)
CASE_LIMIT_S = 240.0
REFERENCES = "references"


def import_everything(families: Iterable[str]) -> None:
    """Pay once, before the forks, for imports, for the tiny models' files and for what a family's first load costs."""
    for name in PRELOADED:
        import_module(name)
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer  # noqa: F401
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # noqa: F401

    torch.set_num_threads(1)
    for family in sorted(set(families)):
        path = resolve_model(f"tiny:{family}").path
        AutoModelForCausalLM.from_pretrained(path)
        AutoTokenizer.from_pretrained(path)
    gc.collect()
    gc.freeze()  # else a collection in a child copies every page of the parent


@dataclass(frozen=True)
class _Running:
    case: Case
    directory: Path
    deadline: float


def run_cases(cases: Sequence[Case], *, directory: Path, at_once: int, keep: bool) -> Iterator[CaseResult]:
    """Give each case's result as it ends. `directory`: for their files, which are removed unless `keep`."""
    waiting = list(cases)[::-1]
    (directory / REFERENCES).mkdir(parents=True, exist_ok=True)
    running: dict[int, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                case = waiting.pop()
                place = directory / case.name.replace("/", "-")
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(parents=True)
                pid = fork(_make_run(case, place, directory / REFERENCES), log=place / "case.log")
                running[pid] = _Running(case, place, time.monotonic() + CASE_LIMIT_S)
            ended = [(pid, code) for pid in running if (code := _poll(pid, running[pid].deadline)) is not None]
            for pid, code in ended:
                done = running.pop(pid)
                yield _read(done, code)
                if not keep:
                    shutil.rmtree(done.directory, ignore_errors=True)
            if not ended:
                time.sleep(POLL_S)
    finally:
        for pid in running:
            end_group(pid)
            os.waitpid(pid, 0)


def _make_run(case: Case, place: Path, references: Path) -> Callable[[], int]:
    def run() -> int:
        result = run_case(case, place, references_at=references)
        aside = place / "result.tmp"
        aside.write_text(result.to_line())
        aside.replace(place / "result.json")
        return 0

    return run


def _poll(pid: int, deadline: float) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        return read_exit(status)
    if time.monotonic() < deadline:
        return None
    end_group(pid)
    os.waitpid(pid, 0)
    return TIMED_OUT


def _read(done: _Running, code: int) -> CaseResult:
    file = done.directory / "result.json"
    if code == 0 and file.is_file():
        return parse_result(json.loads(file.read_text()))
    log = (done.directory / "case.log").read_text(errors="replace").strip().split("\n")
    broken = f"the case ended with code {code}: {log[-1][:300]}"
    return CaseResult(done.case.name, None, None, (), 0.0, 0.0, 0.0, broken)
