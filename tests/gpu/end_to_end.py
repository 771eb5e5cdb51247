"""One small validation from the run to its verdicts, without a sandbox: on a bare machine nothing is installed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from checks.assemble import assemble
from checks.captures.capture import open_capture
from checks.captures.log import keep_log
from checks.material import RunOutcome
from checks.models import resolve_model
from checks.registry import find_checks
from checks.roles import Role
from checks.samples import resolve_data
from checks.spec import Precision, RunSpec
from checks.verdict import Verdict
from tests.gpu.runs import LIMIT_S, ROOT, build_environment
from workers.frameworks import adapter
from workers.judging import judge
from workers.planner import PlannedRun, make_plan
from workers.recorder_command import build_command


def validate_on(
    device: str, precision: Precision, directory: Path, *, checks: tuple[str, ...] | None = None
) -> dict[str, Verdict]:
    """Check → verdict of the plain loop on tiny:qwen3; `checks`: the default ones where None."""
    spec = RunSpec("plain", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"))
    plan = make_plan(replace(spec, precision=precision), find_checks(checks))
    outcomes: dict[Role, RunOutcome] = {run.role: _record(run, directory, device) for run in plan.runs}
    material = assemble(
        replace(spec, precision=precision),
        outcomes,
        references=plan.needs_reference,
        definition=plan.needs("model.definition"),
    )
    return judge(plan.judged, material)


def _record(planned: PlannedRun, directory: Path, device: str) -> RunOutcome:
    scratch, out = directory / "scratch" / planned.role.value, directory / planned.role.value
    log = directory / f"{planned.role.value}.log"
    chosen = adapter(planned.spec.framework)
    launch = chosen.prepare(planned.spec, scratch)
    command = build_command(
        launch, out=out, steps=planned.captured_steps, modules=planned.modules, memory=planned.memory
    )
    environment = {**build_environment(device), **launch.environment}
    environment["CUDA_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"] if device.startswith("cuda") else ""
    with log.open("wb") as file:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False
        )
    keep_log(out, chosen.read_log(launch.output, log))
    ending = "completed" if done.returncode == 0 else "failed"
    last = None if done.returncode == 0 else log.read_text(errors="replace")[-2000:]
    return RunOutcome(ending, done.returncode, 1.0, last, open_capture(out), None)
