"""An uploaded capture in the place of a run of the framework: found, named, and attached to a validation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline_web.artefacts.store import MissingArtefact, open_artefact
from plumbline_web.catalog.installed import keep_environment
from plumbline_web.catalog.models import Environment, Framework
from plumbline_web.validations.enums import RunRole, RunState
from plumbline_web.validations.models import Capture, CaptureFile, FrameworkRun, Validation, ValidationRun
from plumbline_web.validations.origin import Origin, read_origin
from plumbline_web.validations.submission import InvalidSubmission, Submission
from workers.report.as_json import to_plain

MANIFEST = "manifest.json"


def find_pushed(submission: Submission) -> Capture | None:
    """The uploaded capture that a submission names; None where it names none.

    Raises:
        InvalidSubmission: there is none, its files are gone, or something is asked that needs a run here.
    """
    if submission.capture is None:
        return None
    for name, given in (("inject", submission.inject), ("full", submission.full), ("fresh", submission.fresh)):
        if given:
            raise InvalidSubmission({name: "has no meaning for a capture that was recorded elsewhere; leave it out"})
    capture = Capture.objects.filter(pk=submission.capture, uploaded_by__isnull=False).first()
    if capture is None:
        raise InvalidSubmission({"capture": f"there is no uploaded capture {submission.capture}; upload one first"})
    if capture.files.filter(artefact__missing_since__isnull=False).exists():
        raise InvalidSubmission({"capture": "files of it are gone from the server's disk; upload it again"})
    return capture


def origin_of(capture: Capture) -> Origin:
    """What an uploaded capture says of its process; read of its manifest where it was uploaded before that was kept.

    Raises:
        InvalidSubmission: its manifest is gone.
    """
    if not capture.recorded:
        manifest = capture.files.select_related("artefact").get(name=MANIFEST)
        try:
            with open_artefact(manifest.artefact) as file:
                capture.recorded = to_plain(read_origin(json.load(file)))
        except MissingArtefact as error:
            raise InvalidSubmission({"capture": f"{error}; upload it again"}) from None
        Capture.objects.filter(pk=capture.pk).update(recorded=capture.recorded)
    return Origin(**capture.recorded)


def environment_of(capture: Capture, framework: Framework) -> Environment:
    """The environment that a capture says it was recorded in."""
    origin = origin_of(capture)
    return keep_environment(framework, python=origin.python or "unknown", packages=origin.packages)


def pushed_need(need: str, capture: Capture) -> str:
    """SHA-256 of what a pushed capture was said to be, with its content; no run that is made here has it."""
    return hashlib.sha256(f"pushed {capture.digest} {need}".encode()).hexdigest()


def attach_pushed(
    validation: Validation, capture: Capture, *, need: str, spec: Mapping[str, Any], steps: Sequence[int]
) -> FrameworkRun:
    """Give a validation an ended run whose capture was pushed. Within `change_of_state`."""
    run = FrameworkRun.objects.filter(need=need, state=RunState.ENDED).first()
    if run is None:
        run = _write_run(validation, capture, need=need, spec=spec, steps=steps)
    ValidationRun.objects.create(validation=validation, run=run, role=RunRole.RUN, reused=True)
    return run


def _write_run(
    validation: Validation, capture: Capture, *, need: str, spec: Mapping[str, Any], steps: Sequence[int]
) -> FrameworkRun:
    origin = origin_of(capture)
    run = FrameworkRun.objects.create(
        need=need,
        framework=validation.framework,
        environment=validation.environment,
        model=validation.model,
        spec=dict(spec),
        steps=list(capture.steps or steps),
        time_limit_s=validation.time_limit_s,
        state=RunState.ENDED,
        ended_at=capture.created_at,
        ending="failed" if origin.exit_code else "completed",
        exit_code=origin.exit_code,
        signal=origin.exit_code - 128 if origin.exit_code > 128 else None,
        elapsed_s=origin.elapsed_s,
        last_error="the recorded command says more" if origin.exit_code else "",
        device=origin.device,
    )
    _give(capture, run)
    return run


def _give(capture: Capture, run: FrameworkRun) -> None:
    """A capture is one run's; judged as something else, its files are another run's too."""
    if not Capture.objects.filter(pk=capture.pk, run__isnull=True).update(run=run):
        again = Capture.objects.create(
            run=run,
            digest=capture.digest,
            size=capture.size,
            framework=capture.framework,
            steps=capture.steps,
            tensors=capture.tensors,
            whole=capture.whole,
        )
        CaptureFile.objects.bulk_create(
            CaptureFile(capture=again, name=file.name, artefact_id=file.artefact_id) for file in capture.files.all()
        )
