"""How far a validation is: its framework runs, references and judgement, with elapsed and remaining times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Q
from django.utils import timezone

from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.validations.enums import RunRole, RunState
from plumbline_web.validations.models import FrameworkRun, Validation, ValidationRun

TYPICAL_S: Mapping[str, float] = {Kind.CAPTURE: 20.0, Kind.REFERENCE: 5.0, Kind.JUDGE: 1.0}
"""Weights of the parts where no earlier job says how long one takes: measured with a tiny model on two cores."""

NEARLY = 0.95
"""A running part counts for no more than this, however long it takes: only its end makes it whole."""

OPEN_JOBS = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True)
class Task:
    """One part of a validation: a framework run, the references, or the judgement."""

    title: str
    state: str
    """of its job; `reused` for a run whose capture was stored before, `waiting` where there is no job yet"""
    job: Job | None = None
    elapsed_s: float | None = None
    expected_s: float | None = None
    weight_s: float = 0.0
    run: FrameworkRun | None = None

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_JOBS

    @property
    def remaining_s(self) -> float | None:
        """What is left if it takes as long as earlier ones; None where there are none, or it has taken longer."""
        if self.expected_s is None:
            return None
        left = self.expected_s - (self.elapsed_s or 0.0)
        return left if left > 0 else None

    @property
    def fraction(self) -> float:
        if self.state in (JobState.DONE, "reused"):
            return 1.0
        if self.state != JobState.RUNNING or not self.weight_s:
            return 0.0
        return min(NEARLY, (self.elapsed_s or 0.0) / self.weight_s)


@dataclass(frozen=True)
class Progress:
    """The parts in the order in which they happen; runs of equal need may go side by side."""

    tasks: tuple[Task, ...] = ()

    @property
    def fraction(self) -> float:
        whole = sum(task.weight_s for task in self.tasks)
        return sum(task.weight_s * task.fraction for task in self.tasks) / whole if whole else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Of all parts one after another: an upper estimate, since runs may go side by side; None where unknown."""
        left = [task.remaining_s for task in self.tasks if task.state not in (JobState.DONE, "reused")]
        return sum(each for each in left if each is not None) if left and None not in left else None

    @property
    def running(self) -> Task | None:
        """What is done now, else what is waited for."""
        order = (JobState.RUNNING, JobState.QUEUED)
        return next((task for state in order for task in self.tasks if task.state == state), None)


def read_progress(validations: Sequence[Validation]) -> dict[int, Progress]:
    """Progress by validation's key, in two queries for all of them."""
    links: dict[int, list[ValidationRun]] = {validation.pk: [] for validation in validations}
    found = ValidationRun.objects.filter(validation__in=list(links)).select_related("run").order_by("pk")
    for link in found:
        links[link.validation_id].append(link)
    jobs = latest_jobs(
        Job.objects.filter(
            Q(run__in={link.run_id for each in links.values() for link in each}) | Q(validation__in=list(links))
        )
    )
    return {validation.pk: build_progress(validation, links[validation.pk], jobs) for validation in validations}


JobKey = tuple[str, int | None, int | None]


def latest_jobs(jobs: Iterable[Job]) -> dict[JobKey, Job]:
    """The last job of each kind and subject."""
    return {(job.kind, job.run_id, job.validation_id): job for job in sorted(jobs, key=lambda job: job.pk)}


def build_progress(validation: Validation, links: Sequence[ValidationRun], jobs: Mapping[JobKey, Job]) -> Progress:
    """`links`: the validation's runs; `jobs`: as `latest_jobs` gives them."""
    if validation.pushed_id is None:
        tasks = [_read_run(link, jobs.get((Kind.CAPTURE, link.run_id, None))) for link in links]
    else:
        tasks = [Task("pushed capture", "reused", run=link.run) for link in links]
    asked = next((link.run_id for link in links if link.role == RunRole.RUN), None)
    if validation.plan.get("needs_reference") and asked is not None:
        tasks.append(
            _read_job("float64 reference", Kind.REFERENCE, jobs.get((Kind.REFERENCE, asked, None)), validation)
        )
    tasks.append(_read_job("judging", Kind.JUDGE, jobs.get((Kind.JUDGE, None, validation.pk)), validation))
    return Progress(tuple(tasks))


def _read_run(link: ValidationRun, job: Job | None) -> Task:
    title = "framework run" if link.role == RunRole.RUN else str(RunRole(link.role).label)
    if link.reused and link.run.state == RunState.ENDED:
        return Task(title, "reused", job=job, run=link.run)
    return _read_task(title, Kind.CAPTURE, job, run=link.run)


def _read_job(title: str, kind: Kind, job: Job | None, validation: Validation) -> Task:
    # a reference of an earlier validation with the same run
    if job is not None and job.ended_at is not None and job.ended_at < validation.created_at:
        return Task(title, "reused", job=job)
    return _read_task(title, kind, job)


def _read_task(title: str, kind: Kind, job: Job | None, *, run: FrameworkRun | None = None) -> Task:
    if job is None:
        return Task(title, "waiting", weight_s=TYPICAL_S[kind], run=run)
    elapsed = (
        ((job.ended_at or timezone.now()) - job.started_at).total_seconds()
        if job.started_at is not None and job.state != JobState.QUEUED
        else None
    )
    return Task(
        title=title,
        state=job.state,
        job=job,
        elapsed_s=elapsed,
        expected_s=job.expected_s,
        weight_s=job.expected_s or TYPICAL_S[kind],
        run=run,
    )
