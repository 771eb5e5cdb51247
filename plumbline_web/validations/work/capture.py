"""A capture job: the framework with the recorder in front, its capture into the store."""

from __future__ import annotations

from pathlib import Path

import torch

from checks.captures.capture import Capture as RecordedCapture
from checks.captures.capture import open_capture
from checks.captures.log import keep_log
from checks.errors import CaptureError
from plumbline_web.artefacts.store import store_file
from plumbline_web.curves.domain import store_curves
from plumbline_web.jobs.domain import Lease, finish, lock, note_process_group
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.validations.advance import advance_all, start
from plumbline_web.validations.enums import RunState, State
from plumbline_web.validations.models import FrameworkRun, Validation
from plumbline_web.validations.states import change_of_state, move_run
from plumbline_web.validations.work.devices import held_devices
from plumbline_web.validations.work.heart import Heart
from plumbline_web.validations.work.scratch import store_files, write_capture
from workers.devices.lending import show_devices
from workers.execution import LAST_OUTPUT_CHARACTERS
from workers.frameworks import adapter
from workers.frameworks.shims import list_preload
from workers.jobs.documents import read_spec
from workers.runner import FrameworkRun as EndedRun
from workers.runner import run_framework


def begin(job: Job) -> None:
    """Say on the run and on the validations that wait for it that it has begun."""
    assert job.run_id is not None
    with change_of_state():
        run = FrameworkRun.objects.select_for_update().get(pk=job.run_id)
        if run.state in (RunState.QUEUED, RunState.RUNNING):
            move_run(run, RunState.RUNNING)
        for validation in Validation.objects.select_for_update().filter(validation_runs__run=run, state=State.QUEUED):
            start(validation)


def perform(lease: Lease, job: Job, heart: Heart, directory: Path) -> None:
    """Run the framework; write what it left in one transaction, or nothing where the lease is gone."""
    run = job.run
    assert run is not None
    begin(job)
    spec = read_spec(run.spec)
    chosen = adapter(spec.framework)
    launch = chosen.prepare(spec, directory / "scratch")
    last_output = ""

    def on_line(line: str) -> None:
        nonlocal last_output
        last_output = line.strip()[-LAST_OUTPUT_CHARACTERS:] or last_output
        heart.take_line(line)

    with held_devices(lease, spec, heart, host=job.host) as devices:
        heart.say("framework run")
        ended = run_framework(
            show_devices(launch, devices) if devices else launch,
            out=directory / "capture",
            scratch=directory / "scratch",
            log=directory / "log",
            steps=tuple(run.steps),
            full=run.full,
            modules=run.modules or None,
            memory=run.memory,
            preload=list_preload(spec.framework, fault_slug=spec.fault),
            time_limit_s=run.time_limit_s,
            memory_limit_bytes=run.memory_limit_bytes,
            on_line=on_line,
            cancelled=heart.cancelled,
            tag=lease.tag,
            on_start=lambda group: note_process_group(lease, group),
        )
    if heart.cancelled():
        return
    recorded, unreadable = _open(ended)
    heart.say("storing the capture")
    curves = chosen.read_log(launch.output, ended.log)
    if recorded is not None:
        keep_log(directory / "capture", curves)
    stored = store_files(directory / "capture", recorded) if recorded is not None else None
    log = store_file(ended.log)
    with change_of_state():
        job = lock(lease)
        run = FrameworkRun.objects.select_for_update().get(pk=run.pk)
        if run.state != RunState.RUNNING:
            finish(job, JobState.CANCELLED, log=log)  # cancelled while its files were being stored
            return
        if stored is not None:
            write_capture(stored, run=run)
        move_run(
            run,
            RunState.ENDED,
            ending=ended.ending,
            exit_code=ended.exit_code,
            signal=ended.signal,
            elapsed_s=ended.elapsed_s,
            peak_memory_bytes=ended.peak_memory_bytes,
            last_error=(ended.last_error or "").replace("\0", ""),
            last_output=last_output.replace("\0", ""),
            unreadable=unreadable,
            device=name_device(),
        )
        store_curves(run, curves)
        finish(job, JobState.DONE, log=log)
        advance_all(run)


def name_device() -> str:
    """What this worker runs a framework on."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"


def _open(ended: EndedRun) -> tuple[RecordedCapture | None, str]:
    if ended.capture is None:
        return None, "the recorder wrote no capture"
    try:
        return open_capture(ended.capture), ""
    except CaptureError as error:
        return None, str(error)
