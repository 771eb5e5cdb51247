"""Rows as the API's documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest
from django.utils import timezone

from plumbline_web.api.access import caller
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.validations.models import CheckResult, Validation
from plumbline_web.validations.needs import expected_seconds
from plumbline_web.validations.presentation import measure_elapsed, row
from workers.report.as_json import to_plain

NUMBER = re.compile(r"(?:V-)?([1-9]\d{0,17})", re.IGNORECASE | re.ASCII)


def parse_number(text: str) -> int | None:
    """12 for `V-12` and `12`; None for anything else."""
    found = NUMBER.fullmatch(text)
    return int(found[1]) if found else None


def find_validation(number: str, request: HttpRequest) -> Validation:
    """A validation that the caller may see, with its names.

    Raises:
        Http404: there is none.
    """
    pk = parse_number(number)
    found: Validation | None = None
    if pk is not None:
        found = Validation.objects.visible_to(caller(request)).with_names().filter(pk=pk).first()
    if found is None:
        raise Http404
    return found


def show_row(validation: Validation) -> dict[str, Any]:
    """What the list, the page and the exports say of a validation."""
    return asdict(row(validation))


def describe_validation(validation: Validation) -> dict[str, Any]:
    """Everything but the verdicts."""
    jobs = _list_jobs(validation)
    elapsed_s, remaining_s = measure_elapsed(validation), _expect_remaining(validation, jobs)
    running = next((job for job in jobs if job.state == JobState.RUNNING), None)
    return show_row(validation) | {
        "version": validation.version,
        "phase": validation.phase,
        "detail": "" if running is None else running.detail or running.phase,
        "fraction": _measure_fraction(validation, jobs, elapsed_s, remaining_s),
        "elapsed_s": elapsed_s,
        "remaining_s": remaining_s,
        "error": validation.error,
        "warnings": validation.warnings,
        "checks": validation.checks,
        "settings": validation.settings,
        "inject": validation.inject or None,
        "full": validation.full,
        "time_limit_s": validation.time_limit_s,
        "memory_limit_bytes": validation.memory_limit_bytes,
        "spec": validation.spec,
        "plan": validation.plan,
        "cloned_from": None if validation.cloned_from_id is None else f"V-{validation.cloned_from_id}",
        "capture": validation.pushed_id,
        "jobs": [
            {
                "id": job.pk,
                "kind": job.kind,
                "state": job.state,
                "phase": job.phase,
                "detail": job.detail,
                "attempts": job.attempts,
                "error": job.error,
            }
            for job in jobs
        ],
    }


def show_result(result: CheckResult) -> dict[str, Any]:
    """One verdict as a row; its whole evidence is in the validation's result."""
    return {
        "validation": result.validation.number,
        "check": result.check_name,
        "status": result.status,
        "sentence": result.sentence,
        "pattern": result.pattern or None,
        "first_wrong": result.first_wrong or None,
        "value": to_plain(result.value),
        "threshold": to_plain(result.threshold),
        "detection_limit": to_plain(result.detection_limit),
        "elapsed_s": result.elapsed_s,
        "framework": result.framework.name,
        "framework_version": result.environment.version,
        "model": result.model.name,
        "judged_at": result.judged_at,
        "plumbline": result.plumbline,
    }


def _list_jobs(validation: Validation) -> list[Job]:
    """Jobs of the validation and of its framework runs, in the order in which they were asked for."""
    return list(Job.objects.filter(Q(validation=validation) | Q(run__validations=validation)).distinct().order_by("pk"))


def _expect_remaining(validation: Validation, jobs: Sequence[Job]) -> float | None:
    """Seconds that are expected still: of the jobs that are open, and of the kinds that come after them."""
    if not validation.is_open:
        return None
    expected: list[float | None] = []
    for job in jobs:
        if job.state == JobState.QUEUED:
            expected.append(job.expected_s)
        elif job.state == JobState.RUNNING and job.started_at is not None:
            gone = (timezone.now() - job.started_at).total_seconds()
            expected.append(None if job.expected_s is None else max(0.0, job.expected_s - gone))
    for kind in _missing_kinds(validation, jobs):
        expected.append(expected_seconds(kind, validation.framework, validation.model))
    return None if None in expected else sum(each for each in expected if each is not None)


def _missing_kinds(validation: Validation, jobs: Sequence[Job]) -> list[Kind]:
    there = {job.kind for job in jobs}
    coming = [Kind.REFERENCE] if validation.plan.get("needs_reference") else []
    return [kind for kind in (*coming, Kind.JUDGE) if kind not in there]


def _measure_fraction(
    validation: Validation, jobs: Sequence[Job], elapsed_s: float | None, remaining_s: float | None
) -> float:
    """By time where it is known what to expect, else by jobs; never whole before the end."""
    if not validation.is_open:
        return validation.fraction
    if elapsed_s is not None and remaining_s is not None and elapsed_s + remaining_s > 0:
        return min(0.99, elapsed_s / (elapsed_s + remaining_s))
    done = sum(job.state == JobState.DONE for job in jobs)
    return min(0.99, done / max(1, len(jobs) + len(_missing_kinds(validation, jobs))))
