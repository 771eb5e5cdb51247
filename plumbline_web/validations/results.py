"""A validation as the one JSON document of docs/json.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.validations.enums import RunState, Status
from plumbline_web.validations.models import FrameworkRun, Validation
from workers.report.as_json import SCHEMA, SCHEMA_VERSION
from workers.request import PhaseTime, total_seconds

EXIT_CODES = {Status.PASS: 0, Status.FAIL: 1, Status.INCONCLUSIVE: 2, Status.ERROR: 2}


def result_document(validation: Validation) -> dict[str, Any]:
    """The document of a validation that is done; before that, with the verdicts that there are."""
    links = list(validation.validation_runs.select_related("run").order_by("run_id"))
    results = list(validation.results.filter(superseded_at__isnull=True).order_by("position"))
    jobs = Job.objects.filter(run__in=[link.run_id for link in links]) | Job.objects.filter(validation=validation)
    phases = _list_phases(jobs.filter(state=JobState.DONE).order_by("started_at"))
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "plumbline": results[0].plumbline if results else None,
        "created": (validation.ended_at or validation.created_at).isoformat(timespec="seconds"),
        "exit_code": exit_code(validation),
        "request": {
            "framework": validation.framework.name,
            "model": validation.model.name,
            "data": validation.data,
            "checks": validation.checks,
            "settings": validation.settings,
            "inject": validation.inject or None,
            "out": None,
            "full": validation.full,
            "time_limit_s": validation.time_limit_s,
            "memory_limit_bytes": validation.memory_limit_bytes,
        },
        "spec": validation.spec,
        "environment": {"python": validation.environment.python, **validation.environment.packages},
        "phases": [asdict(phase) for phase in phases],
        "total_s": total_seconds(phases),
        "runs": [_describe_run(link.run) for link in links if link.run.state == RunState.ENDED],
        "verdicts": [result.document for result in results],
        "warnings": validation.warnings,
    }


def exit_code(validation: Validation) -> int:
    """As `plumbline validate` would exit; 2 for one that ended without verdicts."""
    return EXIT_CODES.get(Status(validation.verdict), 2) if validation.verdict else 2


def _list_phases(jobs: Iterable[Job]) -> list[PhaseTime]:
    spans = [(job, job.started_at, job.ended_at) for job in jobs if job.started_at and job.ended_at]
    return [
        PhaseTime(job.get_kind_display(), (end - start).total_seconds(), (start - spans[0][1]).total_seconds())
        for job, start, end in spans
    ]


def _describe_run(run: FrameworkRun) -> dict[str, Any]:
    return {
        "exit_code": run.exit_code,
        "signal": run.signal,
        "ending": run.ending,
        "log": None,
        "capture": None,
        "elapsed_s": run.elapsed_s,
        "peak_memory_bytes": run.peak_memory_bytes,
        "last_error": run.last_error or None,
    }
