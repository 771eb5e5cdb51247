"""A judge job: the verdicts, or the further pass that would tell more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plumbline_web.artefacts.store import store_file
from plumbline_web.jobs.domain import Lease, finish, lock
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.validations.advance import advance, attach_run, start
from plumbline_web.validations.completion import complete
from plumbline_web.validations.enums import RunRole
from plumbline_web.validations.models import FrameworkRun, Validation
from plumbline_web.validations.needs import digest_need
from plumbline_web.validations.states import change_of_state
from plumbline_web.validations.telling import tell_findings
from plumbline_web.validations.work.computing import compute
from plumbline_web.validations.work.heart import Heart
from plumbline_web.validations.work.reference import lay_out_references
from plumbline_web.validations.work.scratch import lay_out, reference_cache
from workers.jobs.documents import JudgeOrder, StoredOutcome, StoredPass, read_spec
from workers.report.as_json import to_plain

PASSES = (RunRole.SECOND_PASS, RunRole.THIRD_PASS)


def perform(lease: Lease, job: Job, heart: Heart, directory: Path) -> None:
    """Judge; write the verdicts, or open the wanted pass, in one transaction."""
    validation = job.validation
    assert validation is not None
    _begin(validation)
    runs = {link.role: link.run for link in validation.validation_runs.select_related("run__capture")}
    order = _build_order(validation, runs, directory)
    answer = compute("judge", order, lease=lease, heart=heart, directory=directory)
    if answer is None:
        return
    log = store_file(directory / "log")
    with change_of_state():
        job = lock(lease)
        validation = Validation.objects.select_for_update().get(pk=validation.pk)
        finish(job, JobState.DONE, log=log)
        if not validation.is_open:
            return
        if answer["wanted"] is not None:
            _attach_pass(validation, answer["wanted"])
            advance(validation)
        else:
            complete(validation, answer)
            tell_findings(validation)


def _begin(validation: Validation) -> None:
    with change_of_state():
        start(Validation.objects.select_for_update().get(pk=validation.pk))


def _build_order(validation: Validation, runs: Mapping[str, FrameworkRun], directory: Path) -> JudgeOrder:
    outcomes: dict[str, StoredOutcome] = {role: lay_out(run, directory / role) for role, run in runs.items()}
    if RunRole.RUN in runs:
        lay_out_references(runs[RunRole.RUN])
    return JudgeOrder(
        spec=validation.spec,
        revision=validation.model.revision,
        checks=validation.checks,
        runs={role: outcome for role, outcome in outcomes.items() if role not in PASSES},
        references=str(reference_cache()),
        passes=[StoredPass(role.value, outcomes[role].capture) for role in PASSES if role in outcomes],
        pushed=validation.pushed_id is not None,
    )


def _attach_pass(validation: Validation, wanted: Mapping[str, Any]) -> None:
    spec = replace(read_spec(validation.spec), steps=wanted["step"])
    steps = (wanted["step"],)
    need = digest_need(
        spec,
        environment=validation.environment,
        model=validation.model,
        data_digest=validation.plan["data_digest"],
        steps=steps,
        modules=wanted["modules"],
        full=False,
    )
    attach_run(
        validation,
        role=RunRole(wanted["label"]),
        need=need,
        spec=to_plain(spec),
        steps=steps,
        modules=wanted["modules"],
        full=False,
        fresh=validation.fresh,
    )
