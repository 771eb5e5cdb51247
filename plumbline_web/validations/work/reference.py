"""A reference job: the trusted counterparts of a run's captured steps, each into the store under its key."""

from __future__ import annotations

import time
from pathlib import Path

from plumbline_web.artefacts.store import materialise, store_file
from plumbline_web.jobs.domain import Lease, finish, lock
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.validations.advance import advance_all
from plumbline_web.validations.models import FrameworkRun, Reference, RunReference
from plumbline_web.validations.states import change_of_state
from plumbline_web.validations.work.computing import compute
from plumbline_web.validations.work.heart import Heart
from plumbline_web.validations.work.scratch import lay_out, reference_cache
from workers.jobs.documents import ReferenceOrder


def perform(lease: Lease, job: Job, heart: Heart, directory: Path) -> None:
    """Compute what no earlier run had computed; write the rows in one transaction."""
    run = job.run
    assert run is not None
    begun = time.monotonic()
    order = ReferenceOrder(
        spec=run.spec,
        revision=run.model.revision,
        run=lay_out(run, directory / "run"),
        references=str(reference_cache()),
    )
    answer = compute("reference", order, lease=lease, heart=heart, directory=directory)
    if answer is None:
        return
    seconds = time.monotonic() - begun
    references = {step: keep_reference(key, step=int(step), seconds=seconds) for step, key in answer["used"].items()}
    log = store_file(directory / "log")
    with change_of_state():
        job = lock(lease)
        for step, reference in references.items():
            RunReference.objects.update_or_create(
                run=run, step=int(step), defaults={"reference": reference, "cached": step in answer["held"]}
            )
        for step, why in answer["none"].items():
            RunReference.objects.update_or_create(
                run=run, step=int(step), defaults={"reference": None, "why_none": why, "cached": False}
            )
        finish(job, JobState.DONE, log=log)
        advance_all(FrameworkRun.objects.select_for_update().get(pk=run.pk))


def keep_reference(key: str, *, step: int, seconds: float) -> Reference:
    """The row of a reference, its file taken into the store where it is new."""
    reference = Reference.objects.filter(key=key).first()
    if reference is None:
        artefact = store_file(reference_cache() / f"{key}.safetensors")
        reference, _ = Reference.objects.get_or_create(
            key=key, defaults={"step": step, "artefact": artefact, "seconds": seconds}
        )
    return reference


def lay_out_references(run: FrameworkRun) -> None:
    """Bring a run's references into this machine's cache, from the store where another machine computed them."""
    for link in run.run_references.filter(reference__isnull=False).select_related("reference__artefact"):
        assert link.reference is not None
        file = reference_cache() / f"{link.reference.key}.safetensors"
        if not file.is_file():
            materialise(link.reference.artefact, file)
