"""Rows for tests: people, what is validated, and validations in every state with results that a real run gave.

The verdicts are those of `failing_result.json`, the document of a real validation with an injected fault; a passing
validation has the same measurements, brought down to their floors.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from django.utils import timezone

from checks.spec import RunSpec
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.artefacts.models import Artefact
from plumbline_web.catalog.models import Environment, Framework, Profile, TrainedModel
from plumbline_web.jobs.enums import JobState, Kind, Queue
from plumbline_web.jobs.models import Job, LogLine
from plumbline_web.problems.models import Problem
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.validations.enums import RunRole, RunState, State, Status
from plumbline_web.validations.findings import open_finding
from plumbline_web.validations.models import (
    Capture,
    CaptureFile,
    Cell,
    CheckResult,
    Finding,
    FrameworkRun,
    Reference,
    RunReference,
    Validation,
    ValidationRun,
)
from workers.report.as_json import to_plain
from workers.report.numbers import format_number

RESULT = Path(__file__).with_name("failing_result.json")
TITLES = {"transformers": "Hugging Face Trainer", "trl": "TRL"}
VERSIONS = {"transformers": "5.24.0", "trl": "1.16.0"}
PASSWORD = "a long enough password"
_numbers = itertools.count(1)


def read_result() -> dict[str, Any]:
    """The document of docs/json.md of a real validation that failed."""
    document: dict[str, Any] = json.loads(RESULT.read_text())
    return document


def failing_verdicts() -> list[dict[str, Any]]:
    """Nine verdicts of a run with a wrong loss count: three fail, five pass, one is skipped."""
    verdicts: list[dict[str, Any]] = read_result()["verdicts"]
    return verdicts


def passing_verdicts() -> list[dict[str, Any]]:
    """The same verdicts of a run in which every measurement lies at its floor."""
    return [_mend(verdict) for verdict in failing_verdicts()]


def verdicts_with(**statuses: str) -> list[dict[str, Any]]:
    """Passing verdicts, but for the named checks: `verdicts_with(step_loss="inconclusive")`."""
    named = {name.replace("_", ".", 1): status for name, status in statuses.items()}
    sentences = {
        "inconclusive": "nothing trusted was compared; ask for steps=4",
        "error": "Plumbline's judge broke (KeyError: 'x'); report this with the JSON output",
    }
    verdicts = passing_verdicts()
    for verdict in verdicts:
        status = named.get(verdict["check"])
        if status is not None:
            verdict |= {"status": status, "sentence": sentences.get(status, verdict["sentence"])}
    return verdicts


def make_user(role: Role = Role.SUBMITTER, *, username: str | None = None, **fields: Any) -> User:
    """A person who can sign in with PASSWORD."""
    name = username or f"{role.value}-{next(_numbers)}"
    return User.objects.create_user(username=name, password=PASSWORD, role=role, **fields)


def make_framework(name: str = "transformers") -> Framework:
    framework, _ = Framework.objects.get_or_create(
        name=name, defaults={"title": TITLES.get(name, name), "package": name}
    )
    return framework


def make_environment(framework: Framework | None = None, *, version: str | None = None) -> Environment:
    framework = framework or make_framework()
    version = version or VERSIONS.get(framework.name, "1.0.0")
    packages = {**read_result()["environment"], framework.name: version}
    environment, _ = Environment.objects.get_or_create(
        framework=framework,
        digest=digest_of(f"{framework.name} {version}"),
        defaults={"version": version, "python": "3.11.7", "packages": packages},
    )
    return environment


def make_model(name: str = "tiny:qwen3") -> TrainedModel:
    model, _ = TrainedModel.objects.get_or_create(
        name=name,
        revision=digest_of(name)[:12],
        defaults={"family": name.rsplit(":", 1)[-1].rsplit("/", 1)[-1], "parameters": 147_904},
    )
    return model


def make_profile(name: str = "nightly", *, version: int = 1, **fields: Any) -> Profile:
    fields = {"data": "gsm8k_sample", "settings": {"steps": 3}, **fields}
    profile, _ = Profile.objects.get_or_create(name=name, version=version, defaults=fields)
    return profile


def make_validation(
    *,
    state: str = State.DONE,
    verdicts: Sequence[Mapping[str, Any]] | None = None,
    owner: User | None = None,
    framework: str = "transformers",
    model: str = "tiny:qwen3",
    profile: Profile | None = None,
    environment: Environment | None = None,
    settings: Mapping[str, Any] | None = None,
    created_at: datetime | None = None,
    duration_s: float = 44.0,
    runs: bool = True,
    **fields: Any,
) -> Validation:
    """A validation in any state. `verdicts`: of one that is done; failing ones where none are given."""
    environment = environment or make_environment(make_framework(framework))
    trained = make_model(model)
    settings = dict(settings or {})
    created_at = created_at or timezone.now() - timedelta(hours=2)
    ended = state in (State.DONE, State.FAILED, State.CANCELLED)
    validation = Validation.objects.create(
        owner=owner or make_user(),
        framework=environment.framework,
        environment=environment,
        model=trained,
        profile=profile,
        data=fields.pop("data", "gsm8k_sample"),
        settings=settings,
        spec=make_spec(environment.framework.name, model, settings),
        plan=make_plan(),
        time_limit_s=fields.pop("time_limit_s", 600.0),
        state=state,
        phase=fields.pop(
            "phase", "" if ended else "framework run" if state == State.RUNNING else "waiting for a worker"
        ),
        fraction=fields.pop("fraction", 1.0 if ended else 0.4 if state == State.RUNNING else 0.0),
        error=fields.pop("error", "the framework's environment could not be opened" if state == State.FAILED else ""),
        started_at=None if state == State.QUEUED else created_at + timedelta(seconds=1),
        ended_at=created_at + timedelta(seconds=1 + duration_s) if ended else None,
        **fields,
    )
    validation.created_at = created_at  # auto_now_add overrides what is given
    validation.save()
    Event.objects.create(
        subject=Subject.VALIDATION, subject_id=validation.pk, actor=validation.owner, text="submitted", data={}
    )
    if runs:
        run_state = {State.QUEUED: RunState.QUEUED, State.RUNNING: RunState.RUNNING}.get(State(state), RunState.ENDED)
        make_run(validation, state=run_state)
        make_run(validation, state=run_state, role=RunRole.MERGED)
    if state == State.DONE:
        add_results(validation, failing_verdicts() if verdicts is None else verdicts)
    validation.refresh_from_db()
    return validation


def add_results(validation: Validation, verdicts: Sequence[Mapping[str, Any]]) -> list[CheckResult]:
    """Store verdicts as a judge job does: rows, counts, the overall verdict, findings of the failing ones."""
    results = []
    for position, verdict in enumerate(verdicts):
        worst = pick_worst(verdict["measurements"])
        result = CheckResult.objects.create(
            validation=validation,
            framework=validation.framework,
            environment=validation.environment,
            model=validation.model,
            profile=validation.profile,
            check_name=verdict["check"],
            position=position,
            status=verdict["status"],
            sentence=verdict["sentence"],
            pattern=verdict["pattern"] or "",
            first_wrong=verdict["first_wrong"] or "",
            value=worst["value"] if worst else None,
            threshold=worst["threshold"] if worst else None,
            detection_limit=verdict["detection_limit"],
            elapsed_s=verdict["elapsed_s"],
            document=verdict,
            plumbline="0.1.0",
        )
        results.append(result)
        if verdict["status"] == Status.FAIL:
            make_finding(result)
    count = {status: sum(verdict["status"] == status for verdict in verdicts) for status in Status}
    order = (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE, Status.PASS, Status.SKIPPED)
    validation.verdict = next((status for status in order if count[status]), "")
    validation.passed, validation.failed = count[Status.PASS], count[Status.FAIL]
    validation.inconclusive, validation.errors = count[Status.INCONCLUSIVE], count[Status.ERROR]
    validation.skipped = count[Status.SKIPPED]
    validation.save()
    return results


def make_finding(result: CheckResult, **fields: Any) -> Finding:
    """As a judge job writes it, and then with `fields`."""
    finding = open_finding(result, silent=fields.pop("silent", True))
    for name, value in fields.items():
        setattr(finding, name, value)
    finding.save()
    return finding


def make_problem(slug: str = "loss-counted-twice", **fields: Any) -> Problem:
    """A problem as a person might write it down."""
    defaults = {
        "title": "The loss is divided by the wrong count",
        "framework": "transformers",
        "component": "trainer",
        "pattern": "objective-scale",
        "stage": "loss",
        "silent": True,
        "symptom": "Every gradient is half of what it should be.",
        "root_cause": "The tokens of all micro-batches are counted in each.",
        "status": "open",
        "first_seen": "2026-11-01",
        "url": f"https://example.org/{slug}",
        "cpu_reproducible": "yes",
        "confidence": "high",
    }
    problem, _ = Problem.objects.get_or_create(slug=slug, defaults={**defaults, **fields})
    return problem


def make_run(
    validation: Validation,
    *,
    state: str = RunState.ENDED,
    role: str = RunRole.RUN,
    reused: bool = False,
    run: FrameworkRun | None = None,
    **fields: Any,
) -> FrameworkRun:
    """A framework run with its part in the validation; `run` where an earlier one is shared."""
    ended = state == RunState.ENDED
    run = run or FrameworkRun.objects.create(
        need=digest_of(f"need {next(_numbers)}"),
        framework=validation.framework,
        environment=validation.environment,
        model=validation.model,
        spec=validation.spec,
        steps=fields.pop("steps", [1, 3]),
        time_limit_s=validation.time_limit_s,
        state=state,
        started_at=None if state == RunState.QUEUED else validation.created_at,
        ended_at=validation.created_at + timedelta(seconds=20) if ended else None,
        ending=fields.pop("ending", "completed" if ended else ""),
        exit_code=fields.pop("exit_code", 0 if ended else None),
        elapsed_s=fields.pop("elapsed_s", 19.7 if ended else None),
        peak_memory_bytes=fields.pop("peak_memory_bytes", 513_216_512 if ended else None),
        device=fields.pop("device", "CPU" if ended else ""),
        **fields,
    )
    ValidationRun.objects.create(validation=validation, run=run, role=role, reused=reused)
    return run


def make_capture(run: FrameworkRun) -> Capture:
    """A stored capture of two files, and the references of its steps."""
    capture = Capture.objects.create(
        run=run,
        digest=digest_of(f"capture {run.pk}"),
        size=1_650_000,
        framework=run.framework.name,
        steps=run.steps,
        tensors=228,
    )
    for name in ("manifest.json", "rank-0.safetensors"):
        CaptureFile.objects.create(capture=capture, name=name, artefact=make_artefact(f"{run.pk} {name}"))
    for step in run.steps:
        reference = Reference.objects.create(
            key=digest_of(f"reference {run.pk} {step}"),
            step=step,
            artefact=make_artefact(f"{run.pk} {step}"),
            seconds=5.1,
        )
        RunReference.objects.create(run=run, step=step, reference=reference)
    return capture


def make_artefact(text: str, *, size: int = 825_000) -> Artefact:
    artefact, _ = Artefact.objects.get_or_create(digest=digest_of(text), defaults={"size": size})
    return artefact


def make_job(
    *,
    run: FrameworkRun | None = None,
    validation: Validation | None = None,
    state: str = JobState.RUNNING,
    lines: Sequence[str] = (),
    **fields: Any,
) -> Job:
    """A capture job of `run`, or a judge job of `validation`, with pieces of its output."""
    started = state != JobState.QUEUED
    job = Job.objects.create(
        kind=fields.pop("kind", Kind.CAPTURE if run is not None else Kind.JUDGE),
        queue=fields.pop("queue", Queue.CPU),
        run=run,
        validation=validation,
        state=state,
        started_at=timezone.now() - timedelta(seconds=8) if started else None,
        ended_at=timezone.now() if state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED) else None,
        attempts=fields.pop("attempts", int(started)),
        token=fields.pop("token", int(started)),
        expected_s=fields.pop("expected_s", 20.0),
        **fields,
    )
    for number, text in enumerate(lines):
        LogLine.objects.create(job=job, number=number, token=job.token, text=text)
    return job


def make_cell(validation: Validation, **fields: Any) -> Cell:
    """The overview's cell of a validation, which is its latest and, where it passed or failed, its conclusive one."""
    conclusive = validation if validation.verdict in (Status.PASS, Status.FAIL) else None
    return Cell.objects.create(
        framework=validation.framework,
        environment=validation.environment,
        model=validation.model,
        profile=validation.profile,
        **{"latest": validation, "conclusive": conclusive, "count": 1, **fields},
    )


def make_spec(framework: str, model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The whole run spec as a validation stores it."""
    spec = RunSpec(framework=framework, model=Path(model.replace(":", "-")), data=Path("gsm8k_sample.jsonl"))
    plain: dict[str, Any] = to_plain(asdict(replace(spec, **settings)))
    return plain


def make_plan() -> dict[str, Any]:
    checks = [verdict["check"] for verdict in failing_verdicts()]
    return {
        "runs": [
            {"role": "run", "steps": [1, 3], "checks": checks[:-1]},
            {"role": "merged", "steps": [1], "checks": ["step.accumulation"]},
        ],
        "judged": checks[:-1],
        "skipped": [{"check": "data.packing", "reason": "the run does not pack (packing=false)"}],
        "needs_reference": True,
    }


def pick_worst(measurements: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The measurement nearest to its threshold or farthest beyond it."""

    def excess(measurement: Mapping[str, Any]) -> tuple[bool, float]:
        value, threshold = float(measurement["value"]), float(measurement["threshold"])
        ratio = math.inf if value and not threshold else value / threshold if threshold else 0.0
        return (not measurement["holds"], math.inf if math.isnan(ratio) else ratio)

    return max(measurements, key=excess, default=None)


def digest_of(text: str) -> str:
    """A digest as the store would give it."""
    return sha256(text.encode()).hexdigest()


def _mend(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict as a run without the fault gives it."""
    mended = copy.deepcopy(dict(verdict))
    if mended["status"] != Status.FAIL:
        return mended
    for measurement in mended["measurements"]:
        measurement |= {"holds": True, "value": measurement["floor"] or 0.0}
    largest = max(float(measurement["value"]) for measurement in mended["measurements"])
    sentence = f"{len(mended['measurements'])} measurements agree within {format_number(largest)}"
    return mended | {"status": "pass", "sentence": sentence, "pattern": None, "first_wrong": None}
