"""A reproduce job: the script in an environment's Python, in a sandbox."""

from __future__ import annotations

from pathlib import Path

from plumbline_web.artefacts.store import store_file
from plumbline_web.jobs.domain import Lease, finish, lock, note_process_group
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Job
from plumbline_web.reports.environments import ask_installed, find_python
from plumbline_web.reports.models import ScriptRun
from plumbline_web.reports.outcomes import Ended, begin_run, end_run
from plumbline_web.reports.subjects import framework_of, package_of
from plumbline_web.validations.states import change_of_state
from plumbline_web.validations.work.capture import name_device
from plumbline_web.validations.work.heart import Heart
from workers.scripts import run_script

TIME_LIMIT_S = 900.0
"""A script of a tiny model takes seconds; one of several processes that import a framework, minutes."""
MEMORY_LIMIT_BYTES = 8 << 30


def perform(lease: Lease, job: Job, heart: Heart, directory: Path) -> None:
    """Run the script and write what it said, or nothing where the lease is gone.

    Raises:
        BadRequest: this machine has no such environment.
    """
    assert job.script_run_id is not None
    run = ScriptRun.objects.select_related("report__finding__validation__framework", "report__problem").get(
        pk=job.script_run_id
    )
    begin_run(run)
    framework = framework_of(run.report)
    installed = ask_installed(find_python(framework, run.environment), package=package_of(run.report))
    heart.say("script of a report")
    end, log = run_script(
        run.script,
        python=installed.path,
        directory=directory,
        time_limit_s=TIME_LIMIT_S,
        memory_limit_bytes=MEMORY_LIMIT_BYTES,
        on_line=heart.take_line,
        cancelled=heart.cancelled,
        tag=lease.tag,
        on_start=lambda group: note_process_group(lease, group),
    )
    if heart.cancelled():
        return
    output = log.read_text(encoding="utf-8", errors="replace")
    stored = store_file(log)
    with change_of_state():
        job = lock(lease)
        finish(job, JobState.DONE, log=stored)
        end_run(ScriptRun.objects.select_for_update().get(pk=run.pk), Ended(end, output, installed, name_device()))
