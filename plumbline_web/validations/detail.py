"""Everything that the page of one validation shows, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from django.db.models import Q

from checks.registry import CHECKS
from checks.spec import RunSpec
from plumbline_web.accounts.models import User
from plumbline_web.jobs.models import Job
from plumbline_web.timeline.models import Event, Subject
from plumbline_web.validations.enums import State, Status
from plumbline_web.validations.forms import write_value
from plumbline_web.validations.models import CheckResult, RunReference, Validation, ValidationRun
from plumbline_web.validations.presentation import STATUS_ORDER
from plumbline_web.validations.progress import Progress, build_progress, latest_jobs
from workers.settings import setting_names

SHOWN_EVENTS = 50


@dataclass(frozen=True)
class CheckLine:
    """One check of the page's table: its verdict, or what it waits for."""

    name: str
    claim: str
    result: CheckResult | None
    word: str
    sentence: str


@dataclass(frozen=True)
class Setting:
    """A setting that differs from the run spec's default."""

    name: str
    value: str
    default: str


@dataclass(frozen=True)
class Detail:
    """One validation, for one reader."""

    validation: Validation
    may_change: bool
    results: tuple[CheckResult, ...]
    links: tuple[ValidationRun, ...]
    references: tuple[RunReference, ...]
    events: tuple[Event, ...]
    progress: Progress

    @property
    def worst(self) -> CheckResult | None:
        """The verdict that decides the whole: the first of the worst status."""
        order = {status: place for place, status in enumerate(STATUS_ORDER)}
        return min(self.results, key=lambda result: (order[Status(result.status)], result.position), default=None)

    @cached_property
    def lines(self) -> tuple[CheckLine, ...]:
        """A line a check: judged ones in reading order, then those that the plan names and nobody has judged."""
        judged = {result.check_name for result in self.results}
        waiting = [name for run in self.validation.plan.get("runs", ()) for name in run["checks"]]
        lines = [_describe(result) for result in self.results]
        for name in (name for name in CHECKS if name in waiting and name not in judged):
            word = "waiting" if self.validation.is_open else State.CANCELLED.value
            what = "waits for what is recorded" if self.validation.is_open else "was not judged"
            lines.append(CheckLine(name, CHECKS[name].claim, None, word, what))
        if not self.results:
            for skip in self.validation.plan.get("skipped", ()):
                claim = CHECKS[skip["check"]].claim if skip["check"] in CHECKS else ""
                lines.append(CheckLine(skip["check"], claim, None, Status.SKIPPED.value, skip["reason"]))
        return tuple(lines)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What differs from the defaults, in the order of the run spec."""
        defaults = {each.name: each.default for each in fields(RunSpec)}
        spec: Mapping[str, Any] = self.validation.spec
        return tuple(
            Setting(name, _show(name, spec[name]), write_value(defaults[name]))
            for name in setting_names()
            if name in spec and write_value(spec[name]) != write_value(defaults[name])
        )

    @property
    def has_step(self) -> bool:
        """There is something for the step page to draw."""
        return any(result.check_name.startswith(("step.", "model.", "data.")) for result in self.results)

    @property
    def has_curves(self) -> bool:
        """A framework run of it ended; what it logged, if anything, can be drawn."""
        return any(task.run is not None and task.run.ending for task in self.progress.tasks)

    @property
    def version(self) -> int:
        return self.validation.version

    @property
    def can_cancel(self) -> bool:
        return self.may_change and self.validation.is_open

    @property
    def can_retry(self) -> bool:
        return self.may_change and not self.validation.is_open

    @property
    def can_rejudge(self) -> bool:
        return self.may_change and self.validation.state == State.DONE


def read_detail(validation: Validation, *, user: User) -> Detail:
    """Seven queries, whatever the validation holds. Verdicts come without their documents."""
    links = tuple(validation.validation_runs.select_related("run__capture", "run__environment").order_by("pk"))
    runs = [link.run_id for link in links]
    jobs = latest_jobs(Job.objects.filter(Q(run__in=runs) | Q(validation=validation)).select_related("log"))
    return Detail(
        validation=validation,
        may_change=Validation.objects.changeable_by(user).filter(pk=validation.pk).exists(),
        results=tuple(
            validation.results.filter(superseded_at__isnull=True)
            .select_related("finding")
            .defer("document")
            .order_by("position")
        ),
        links=links,
        references=tuple(
            RunReference.objects.filter(run__in=runs).select_related("reference").order_by("run_id", "step")
        ),
        events=tuple(
            Event.objects.filter(subject=Subject.VALIDATION, subject_id=validation.pk)
            .select_related("actor")
            .order_by("-at", "-pk")[:SHOWN_EVENTS]
        ),
        progress=build_progress(validation, links, jobs),
    )


def _describe(result: CheckResult) -> CheckLine:
    check = CHECKS.get(result.check_name)
    return CheckLine(
        name=result.check_name,
        claim=check.claim if check is not None else "",
        result=result,
        word=result.status,
        sentence=result.sentence,
    )


def _show(name: str, value: object) -> str:
    """A setting as it is read; a command as the list that it is."""
    return json.dumps(value, ensure_ascii=False) if name == "command" else write_value(value)
