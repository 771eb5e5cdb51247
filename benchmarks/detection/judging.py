"""Run one case to its verdicts, as `plumbline validate --local` would: plan, capture, refer, judge, trace."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.detection.case import Case
from benchmarks.detection.recording import record
from benchmarks.detection.result import CaseResult, CheckResult
from checks.assemble import assemble
from checks.captures.capture import Capture
from checks.check import Check
from checks.faults import fault
from checks.locating import locate
from checks.material import Material, RunOutcome
from checks.models import resolve_model
from checks.references.stored import ReferenceStore
from checks.roles import Role
from checks.spec import RunSpec
from checks.verdict import Status, Verdict
from workers.frameworks import adapter
from workers.judging import LOCATED_BY, judge, next_pass
from workers.planner import PlannedRun, make_plan
from workers.report.as_json import describe_verdict

FINGERPRINTED = ("gradient", "parameter_after")
FAILURES = "failures.json"
"""Below a case's directory: check → its failing verdict as docs/json.md describes it."""


def run_case(case: Case, directory: Path, *, references_at: Path) -> CaseResult:
    """Record the case's runs below `directory`, judge them, and say what came of it.

    `references_at`: where references are kept; cases of one model, batch and settings share theirs.
    """
    started = time.monotonic()
    spec = case.spec_in(directory)
    plan = make_plan(spec, case.checks())
    work = _Work(case, spec, directory)
    outcomes = {planned.role: work.execute(planned) for planned in plan.runs}
    recorded_s = time.monotonic() - started
    references = plan.needs_reference and spec.processes == 1
    material = assemble(
        spec,
        outcomes,
        references=references,
        definition=plan.needs("model.definition"),
        trajectory=plan.needs("convergence.curve"),
        refer=ReferenceStore(references_at, revision=resolve_model(str(spec.model)).revision),
    )
    referred_s = time.monotonic() - started - recorded_s
    judged = judge(plan.judged, material)
    located, material = _trace(work, material, judged)
    if located:
        judged |= judge([check for check in plan.judged if check.name in LOCATED_BY], material)
    _write_failures(judged.values(), directory / FAILURES)
    megabytes = {role: _size(outcome.capture) / 1e6 for role, outcome in outcomes.items()}
    run = outcomes[Role.RUN]
    return CaseResult(
        case=case.name,
        took_effect=None if case.fault is None else work.took_effect(),
        fingerprint=_fingerprint(run.capture),
        checks=tuple(_describe(check, judged[check.name], megabytes) for check in plan.judged),
        seconds_recording=recorded_s,
        seconds_reference=referred_s,
        seconds=time.monotonic() - started,
    )


class _Work:
    """Where one case's runs write, and how they are started."""

    def __init__(self, case: Case, spec: RunSpec, directory: Path) -> None:
        self.case = case
        self.spec = spec
        self.directory = directory
        self._adapter = adapter(case.framework)

    def execute(self, planned: PlannedRun) -> RunOutcome:
        steps = planned.captured_steps
        return self.record(planned.role.value, planned.spec, steps, planned.modules, memory=planned.memory)

    def record(
        self, label: str, spec: RunSpec, steps: tuple[int, ...], modules: str | None = None, *, memory: bool = False
    ) -> RunOutcome:
        launch = self._adapter.prepare(spec, self.directory / "scratch" / label)
        preload = None if self.case.fault is None else fault(self.case.fault).file
        return record(
            launch,
            self._adapter,
            out=self.directory / "captures" / label,
            log=self.directory / "logs" / f"{label}.log",
            steps=steps,
            modules=modules,
            memory=memory,
            preload=preload,
            ranks=spec.processes,
        )

    def took_effect(self) -> bool:
        """Whether a log of any run says that the fault was in force."""
        assert self.case.fault is not None
        marker = fault(self.case.fault).marker
        return any(marker in log.read_text(errors="replace") for log in (self.directory / "logs").iterdir())


def _trace(work: _Work, material: Material, judged: Mapping[str, Verdict]) -> tuple[bool, Material]:
    done: list[str] = []
    while (wanted := next_pass(judged, material, done=done)) is not None:
        spec = replace(work.spec, steps=wanted.step)
        outcome = work.record(wanted.label, spec, (wanted.step,), wanted.modules)
        if outcome.capture is not None and wanted.step in outcome.capture.steps:
            material = locate(material, outcome.capture)
        done.append(wanted.label)
    return bool(done), material


def _write_failures(verdicts: Iterable[Verdict], file: Path) -> None:
    """Keep the failing verdicts as documents (docs/json.md) while the case's files are there."""
    failures = {each.check: describe_verdict(each) for each in verdicts if each.status is Status.FAIL}
    file.write_text(json.dumps(failures))


def _describe(check: Check, verdict: Verdict, megabytes: Mapping[Role, float]) -> CheckResult:
    return CheckResult(
        check=check.name,
        status=verdict.status.value,
        sentence=verdict.sentence,
        pattern=None if verdict.pattern is None else verdict.pattern.value,
        first_wrong=verdict.first_wrong,
        seconds=verdict.elapsed_s,
        megabytes=sum(megabytes.get(role, 0.0) for role in {Role.RUN, *check.roles}),
    )


def _size(capture: Capture | None) -> int:
    return 0 if capture is None else sum(file.stat().st_size for file in capture.path.iterdir())


def _fingerprint(capture: Capture | None) -> str | None:
    """Hash of what the run computed: equal for two runs whose gradients and updates are bitwise the same."""
    if capture is None or not capture.steps:
        return None
    parts: list[str] = []
    for step in capture.steps:
        for kind in FINGERPRINTED:
            for name, tensor in sorted(capture.tensors(step, kind).items()):
                sketch = tensor.read("sketch")
                digest = "" if sketch is None else hashlib.sha256(sketch.numpy().tobytes()).hexdigest()
                parts.append(f"{step} {kind} {name} {digest}")
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
