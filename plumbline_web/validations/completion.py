"""How a validation ends: its results, findings, overall verdict and place in the overview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from django.utils import timezone

from checks.faults import fault
from plumbline_web.artefacts.store import open_artefact
from plumbline_web.jobs.enums import JobState, Kind, Queue
from plumbline_web.jobs.models import Job
from plumbline_web.timeline.domain import record
from plumbline_web.timeline.models import Subject
from plumbline_web.validations.enums import State, Status
from plumbline_web.validations.findings import open_finding, withdraw_finding
from plumbline_web.validations.models import Cell, CheckResult, FrameworkRun, Validation
from plumbline_web.validations.states import move

COMPLETES = "run.completes"

NOT_COMPARED = ("elapsed_s",)
"""Fields of a verdict that differ between two equal judgements."""


def complete(validation: Validation, answer: Mapping[str, Any]) -> None:
    """Write the verdicts of a locked validation and end it; a repeated judgement supersedes what changed."""
    documents: Sequence[Mapping[str, Any]] = answer["verdicts"]
    earlier = {result.check_name: result for result in validation.results.filter(superseded_at__isnull=True)}
    silent = _is_silent(documents)
    for position, document in enumerate(documents):
        known = earlier.get(document["check"])
        if known is not None and _is_same(known.document, document):
            continue
        if known is not None:
            _supersede(validation, known, document)
        result = _write_result(validation, position, document)
        if result.status == Status.FAIL:
            open_finding(result, silent=silent and result.check_name != COMPLETES)
    counts = Counter(document["status"] for document in documents)
    verdict = overall(counts)
    first = not validation.verdict
    move(
        validation,
        State.DONE,
        f"ended: {verdict}",
        verdict=verdict,
        passed=counts[Status.PASS],
        failed=counts[Status.FAIL],
        inconclusive=counts[Status.INCONCLUSIVE],
        errors=counts[Status.ERROR],
        skipped=counts[Status.SKIPPED],
        warnings=[*answer["warnings"], *_warn(validation)],
        phase="",
        fraction=1.0,
        error="",
    )
    place_in_overview(validation, counted=first)


def overall(counts: Mapping[str, int]) -> Status:
    """The worst that says something: any failure, then any error, then inconclusive, also where nothing passed."""
    for status in (Status.FAIL, Status.ERROR, Status.INCONCLUSIVE):
        if counts.get(status, 0):
            return status
    return Status.PASS if counts.get(Status.PASS, 0) else Status.INCONCLUSIVE


def _is_same(known: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    def compared(verdict: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in verdict.items() if name not in NOT_COMPARED}

    return compared(known) == compared(document)


def _supersede(validation: Validation, known: CheckResult, document: Mapping[str, Any]) -> None:
    known.superseded_at = timezone.now()
    known.save(update_fields=["superseded_at"])
    withdraw_finding(known)
    if known.status != document["status"]:
        text = f"{known.check_name} changed from {known.status} to {document['status']}"
        record(Subject.VALIDATION, validation, text, check=known.check_name)


def _write_result(validation: Validation, position: int, document: Mapping[str, Any]) -> CheckResult:
    nearest = _nearest(document["measurements"])
    return CheckResult.objects.create(
        validation=validation,
        framework_id=validation.framework_id,
        environment_id=validation.environment_id,
        model_id=validation.model_id,
        profile_id=validation.profile_id,
        check_name=document["check"],
        position=position,
        status=document["status"],
        sentence=document["sentence"],
        pattern=document["pattern"] or "",
        first_wrong=(document["first_wrong"] or "")[:300],
        value=_number(nearest.get("value")),
        threshold=_number(nearest.get("threshold")),
        detection_limit=_number(document["detection_limit"]),
        elapsed_s=document["elapsed_s"],
        document=document,
        plumbline=version("plumbline"),
    )


def _nearest(measurements: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The measurement furthest beyond its threshold, else the one nearest to it."""

    def ratio(measurement: Mapping[str, Any]) -> float:
        value, threshold = _number(measurement["value"]), _number(measurement["threshold"])
        if value is None:
            return float("inf")
        return value / threshold if threshold else (float("inf") if value > 0 else 0.0)

    return max(measurements, key=ratio, default={})


def _number(value: object) -> float | None:
    """A finite number; what JSON cannot say ("nan", "inf") has no place in a column that is sorted."""
    return float(value) if isinstance(value, (int, float)) else None


def _is_silent(documents: Iterable[Mapping[str, Any]]) -> bool:
    """The run itself looked healthy, so that nothing but a check shows the fault."""
    return any(document["check"] == COMPLETES and document["status"] == Status.PASS for document in documents)


def _warn(validation: Validation) -> list[str]:
    """What a reader of the verdicts should know about the runs."""
    warnings = []
    runs = [link.run for link in validation.validation_runs.select_related("run")]
    if validation.queue == Queue.GPU and any(run.device == "CPU" for run in runs):
        warnings.append(
            "a GPU was asked for; the framework ran on the CPU, because the worker has none: "
            "kernels of a GPU were not judged"
        )
    if validation.inject:
        injected = fault(validation.inject)
        took_effect = any(injected.marker in _read_log(run) for run in runs)
        how = "was injected" if took_effect else "was injected and NEVER TOOK EFFECT"
        warnings.append(f"the fault {validation.inject} {how}: {injected.summary}")
    return warnings


def _read_log(run: FrameworkRun) -> str:
    job = Job.objects.filter(run=run, kind=Kind.CAPTURE, state=JobState.DONE).select_related("log").first()
    if job is None or job.log is None:
        return ""
    with open_artefact(job.log) as file:
        return file.read().decode(errors="replace")


def place_in_overview(validation: Validation, *, counted: bool) -> None:
    """Keep the cell of a validation's profile, environment and model."""
    if validation.inject:
        return  # a fault that was put in says nothing about the framework
    cell, _ = Cell.objects.select_for_update().get_or_create(
        profile=validation.profile,
        environment=validation.environment,
        model=validation.model,
        defaults={"framework": validation.framework, "latest": validation},
    )
    cell.count += counted
    if validation.pk >= cell.latest_id:
        cell.latest = validation
        if validation.verdict == Status.PASS:
            cell.conclusive, cell.last_good, cell.first_bad = validation, validation, None
        elif validation.verdict == Status.FAIL:
            cell.conclusive, cell.first_bad = validation, cell.first_bad or validation
    cell.save()
