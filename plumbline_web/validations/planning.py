"""From a submission to what it takes: the run spec, the framework runs, and which of them are stored already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.errors import BadRequest
from checks.models import resolve_model
from checks.references.budget import reference_memory
from checks.spec import RunSpec
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.catalog.installed import get_environment, get_framework, get_model
from plumbline_web.catalog.models import Environment, Framework, TrainedModel
from plumbline_web.jobs.devices import most_devices
from plumbline_web.jobs.enums import Kind, Queue
from plumbline_web.storage import is_full
from plumbline_web.validations.models import Capture
from plumbline_web.validations.needs import digest_data, digest_need, expected_seconds, find_stored
from plumbline_web.validations.pushed import environment_of, find_pushed, pushed_need
from plumbline_web.validations.submission import FIELDS, InvalidSubmission, Submission, check_roots
from workers.devices.lending import refuse_too_many
from workers.execution import TITLES
from workers.frameworks.command.stated import FRAMEWORK as COMMAND
from workers.planner import Plan, PlannedRun, make_plan
from workers.push.judging import build_pushed_spec, keep_asked_run
from workers.validate import build_spec

PROCESS_BYTES = 1_200_000_000
"""Resident size of a framework's process before it holds a model: interpreter, torch and transformers, measured at
0.9–1.1 GB on CPU.
"""


@dataclass(frozen=True)
class Resolved:
    """A submission checked against this installation, with everything that it takes."""

    submission: Submission
    spec: RunSpec
    plan: Plan
    framework: Framework
    environment: Environment
    model: TrainedModel
    data_digest: str
    capture: Capture | None = None
    """the uploaded one that takes the place of the asked run"""


@dataclass(frozen=True)
class PreviewRun:
    """One framework run of a preview."""

    role: str
    title: str
    steps: tuple[int, ...]
    rows: int
    """that it trains on"""
    checks: tuple[str, ...]
    reused: bool
    """an equal capture is stored, or under way"""


@dataclass(frozen=True)
class Preview:
    """What a submission would take."""

    runs: tuple[PreviewRun, ...]
    skipped: tuple[tuple[str, str], ...]
    """check, reason"""
    memory_bytes: int
    """of the largest process"""
    expected_s: float | None
    """from earlier runs of the framework; None where there are none"""


def resolve(submission: Submission) -> Resolved:
    """Check a submission in full.

    Raises:
        InvalidSubmission: naming every field that is known to be wrong.
        OSError: the disk is full.
    """
    check_roots(submission)
    capture = find_pushed(submission)
    try:
        if capture is None:
            spec, checks, _ = build_spec(submission.to_request())
        else:
            spec, checks = build_pushed_spec(submission.to_request())
        model = get_model(submission.model, resolve_model(submission.model))
        data_digest = digest_data(spec.data)
    except BadRequest as error:
        if error.__context__ is not None and is_full(error.__context__):  # while a model is built in the cache
            raise error.__context__ from None
        raise InvalidSubmission(_name_field(error, submission)) from error
    framework = get_framework(submission.framework)
    plan = make_plan(spec, checks, pushed=capture is not None)
    if capture is None and submission.queue == Queue.GPU:
        _refuse_devices(plan)
    return Resolved(
        submission=submission,
        spec=spec,
        plan=plan if capture is None else keep_asked_run(plan),
        framework=framework,
        environment=get_environment(framework) if capture is None else environment_of(capture, framework),
        model=model,
        data_digest=data_digest,
        capture=capture,
    )


def _refuse_devices(plan: Plan) -> None:
    """Refuse what no machine of this installation has the devices for, as far as they have named any."""
    there = most_devices()
    try:
        for planned in plan.runs:
            refuse_too_many(planned.spec, there=there, where="the largest machine here")
    except BadRequest as error:
        raise InvalidSubmission({f"settings.{error.field}": f"{error.found}; {error.remedy}"}) from None


def _name_field(error: BadRequest, submission: Submission) -> dict[str, str]:
    """The field of a submission, and its sentence.

    A run setting is a field of its own in the command line, and lies under `settings` here. A file is named with its
    path there ("data /sets/a.jsonl line 3"); here it is a part of what was asked, and belongs to the sentence.
    """
    name, _, place = error.field.partition(" ")
    if error.field.startswith("/"):
        name, place = "model", error.field
    sentence = f"{error.found}; {error.remedy}"
    if name in ("model", "data"):
        asked = submission.model if name == "model" else submission.data
        return {name: f"{_shorten_place(place, asked)}: {sentence}" if place else sentence}
    return {name if name in FIELDS else f"settings.{error.field}": sentence}


def _shorten_place(place: str, asked: str) -> str:
    """A file as seen from the directory that was asked for, with the line or row that may follow it."""
    base = Path(asked).resolve()
    for whole in (f"{base}/", f"{base.parent}/"):
        if place.startswith(whole):
            return place.removeprefix(whole)
    return place.rpartition("/")[2]


def refuse_command(submission: Submission, user: User) -> None:
    """Refuse a command line of anybody but an administrator; a capture of one that ran elsewhere is only data.

    Raises:
        InvalidSubmission: naming the field.
    """
    runs = submission.capture is None and (submission.framework == COMMAND or "command" in submission.settings)
    if runs and not user.has_role(Role.ADMINISTRATOR):
        sentence = f"only an administrator runs a command line here, and you are {user.role}; use --local, or push"
        raise InvalidSubmission({"framework": f"{sentence} what you recorded"})


def preview(submission: Submission, *, user: User) -> Preview:
    """What a submission would take if it were submitted now. Raises InvalidSubmission."""
    refuse_command(submission, user)
    resolved = resolve(submission)
    needs = [
        (planned, find_stored(need_of(resolved, planned), fresh=submission.fresh or bool(planned.spec.command)))
        for planned in resolved.plan.runs
    ]
    runs = tuple(
        PreviewRun(
            role=planned.role.value,
            title=TITLES[planned.role],
            steps=planned.captured_steps,
            rows=planned.spec.batch * planned.spec.accumulation * planned.spec.steps,
            checks=planned.checks,
            reused=stored is not None,
        )
        for planned, stored in needs
    )
    return Preview(
        runs=runs,
        skipped=tuple((check.name, reason) for check, reason in resolved.plan.skipped),
        memory_bytes=PROCESS_BYTES + reference_memory(resolved.spec.model, objective=resolved.spec.objective),
        expected_s=_expect_whole(resolved, sum(not run.reused for run in runs)),
    )


def _expect_whole(resolved: Resolved, new_runs: int) -> float | None:
    kinds = (Kind.CAPTURE, Kind.REFERENCE, Kind.JUDGE)
    times = [expected_seconds(kind, resolved.framework, resolved.model) for kind in kinds]
    capture, reference, judge = times
    if judge is None or (new_runs and capture is None):
        return None
    return (capture or 0.0) * new_runs + (reference or 0.0) * bool(new_runs) + judge


def need_of(resolved: Resolved, planned: PlannedRun) -> str:
    """What decides the content of a planned run's capture; a pushed one is its own and answers to no other need."""
    need = digest_need(
        planned.spec,
        environment=resolved.environment,
        model=resolved.model,
        data_digest=resolved.data_digest,
        steps=planned.captured_steps,
        modules=planned.modules or "",
        memory=planned.memory,
        full=resolved.submission.full and not planned.memory,
    )
    return need if resolved.capture is None else pushed_need(need, resolved.capture)


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The plan as it is stored and shown."""
    return {
        "runs": [
            {"role": run.role.value, "steps": list(run.captured_steps), "checks": list(run.checks)} for run in plan.runs
        ],
        "judged": [check.name for check in plan.judged],
        "skipped": [{"check": check.name, "reason": reason} for check, reason in plan.skipped],
        "needs_reference": plan.needs_reference,
    }
