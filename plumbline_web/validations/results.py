"""A validation as the one JSON document of docs/json.md."""

from __future__ import annotations

from typing import Any

from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.validations.enums import RunState, Status
from plumbline_web.validations.models import FrameworkRun, Validation
from workers.report.as_json import SCHEMA, SCHEMA_VERSION

EXIT_CODES = {Status.PASS: 0, Status.FAIL: 1, Status.INCONCLUSIVE: 2, Status.ERROR: 2}


def result_document(validation: Validation) -> dict[str, Any]:
    """The document of a validation that is done; before that, with the verdicts that there are."""
    links = list(validation.validation_runs.select_related("run").order_by("run_id"))
    results = list(validation.results.filter(superseded_at__isnull=True).order_by("position"))
    jobs = Job.objects.filter(run__in=[link.run_id for link in links]) | Job.objects.filter(validation=validation)
    phases = [
        {"name": job.get_kind_display(), "seconds": (job.ended_at - job.started_at).total_seconds()}
        for job in jobs.filter(state=JobState.DONE).order_by("started_at")
        if job.ended_at and job.started_at
    ]
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
        "phases": phases,
        "total_s": sum(phase["seconds"] for phase in phases),
        "runs": [_describe_run(link.run) for link in links if link.run.state == RunState.ENDED],
        "verdicts": [result.document for result in results],
        "warnings": validation.warnings,
    }


def exit_code(validation: Validation) -> int:
    """As `plumbline validate` would exit; 2 for one that ended without verdicts."""
    return EXIT_CODES.get(Status(validation.verdict), 2) if validation.verdict else 2


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
