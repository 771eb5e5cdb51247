"""Runs, saved and resumed runs, with faults or without, recorded as the launcher would: `resuming.py DIR`.

Each process of a run is a fork after the imports, which take most of a run's seconds. What the launcher, resume.py and
the recorder's start do between the processes is done here; the real way is shown in tests/frameworks/test_resume.py.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plumbline_capture import checkpoint
from plumbline_capture.format import utc_now
from plumbline_capture.install import install
from plumbline_capture.manifest import write_manifest
from plumbline_capture.settings import Settings

from checks.faults import fault
from checks.models import resolve_model
from checks.roles import Role, spec_of
from checks.samples import resolve_data
from checks.spec import RunSpec
from workers.frameworks import adapter


@dataclass(frozen=True)
class Case:
    """One run of a framework: its role, and what its run spec has otherwise than the plain one."""

    role: Role = Role.RESUMED
    family: str = "qwen3"
    framework: str = "transformers"
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    """what the model's config.json has otherwise"""
    inject: str | None = None

    def spec(self, directory: Path) -> RunSpec:
        """The run spec of the asked run that the case belongs to; a changed model lies in `directory`."""
        model = resolve_model(f"tiny:{self.family}").path
        if self.config:
            changed = directory / "model"
            if not changed.exists():
                shutil.copytree(model, changed)
                file = changed / "config.json"
                file.write_text(json.dumps(json.loads(file.read_text()) | self.config))
            model = changed
        return RunSpec(self.framework, model, resolve_data("gsm8k_sample"), **self.settings)


PLAIN = Case(settings={"schedule": "linear"}, config={"attention_dropout": 0.1})
"""dropout and a falling rate: without them two of the faults have nothing to act on"""
LORA = Case(settings={"lora": True})
TIED = Case(family="gemma3_text")
RUNS = {"plain": PLAIN, "lora": LORA, "tied": TIED}
FAULTS = {
    "optimizer-not-restored": "plain",
    "schedule-restarts": "plain",
    "data-restart": "plain",
    "dropout-restarts": "plain",
    "loaded-at-random": "plain",
    "saved-transposed": "plain",
    "saved-in-bf16": "plain",
    "tied-head-stale": "tied",
    "adapter-alpha-saved": "lora",
}
"""fault → the run that it is compared with"""


def main(directory: Path) -> None:
    """Run each case into `directory`/NAME: capture, log and what the framework wrote."""
    _warm_up()
    for name, case in RUNS.items():
        run_case(replace(case, role=Role.RUN), directory / name)
    for slug, name in FAULTS.items():
        run_case(replace(RUNS[name], inject=slug), directory / slug)


def _warm_up() -> None:
    import peft  # noqa: F401
    from transformers import AutoModelForCausalLM, Trainer  # noqa: F401

    AutoModelForCausalLM.from_pretrained(resolve_model("tiny:qwen3").path)
    gc.freeze()  # else accelerate's gc.collect() copies every page of the parent in every fork, 0.8 s each


def run_case(case: Case, directory: Path) -> None:
    """Train as the adapter's command says, each of its processes in a fork, and write the manifest."""
    spec = spec_of(case.role, case.spec(directory.parent))
    launch = adapter(spec.framework).prepare(spec, directory / "scratch")
    out = directory / "capture"
    out.mkdir(parents=True)
    after = spec.resume_after
    steps = (1, spec.steps) if after is None else (spec.steps - after,)
    settings = Settings(
        out=str(out),
        steps=steps,
        full_parameters=launch.full_parameters,
        checkpoints=tuple(map(str, launch.checkpoints)),
    )
    os.environ |= launch.environment
    if after is None:
        driver, config = launch.command[-2:]
    else:
        driver, first, config = launch.command[-3:]
        _fork(directory, lambda: _train(driver, first, replace(settings, steps=()), case.inject))
    started = utc_now()
    _fork(directory, lambda: _train(driver, config, settings, case.inject))
    if launch.checkpoints:
        _fork(directory, lambda: checkpoint.main([settings.to_environment()]))
    write_manifest(out, settings=settings, command=list(launch.command), exit_code=0, started=started)


def _train(driver: str, config: str, settings: Settings, slug: str | None) -> None:
    if settings.steps:
        install(settings)
    if slug is not None:
        runpy.run_path(str(fault(slug).file))["install"]()
    sys.argv = [driver, config]
    runpy.run_path(driver, run_name="__main__")


def _fork(directory: Path, work: Callable[[], object]) -> None:
    sys.stdout.flush()
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"{directory.name}: {(directory / 'log').read_text()[-3000:]}")
        return
    code = 1
    try:
        log = os.open(directory / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
