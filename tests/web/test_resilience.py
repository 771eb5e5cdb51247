"""Workers that die, stop, or come too late."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models.functions import Now

from plumbline_web.accounts.models import User
from plumbline_web.jobs.domain import (
    Lease,
    LeaseLost,
    beat,
    lease_tag,
    lock,
    note_process_group,
    open_job,
    take,
    write_line,
)
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job, LogLine
from plumbline_web.validations.domain import cancel, submit
from plumbline_web.validations.models import Capture, FrameworkRun, Validation
from plumbline_web.validations.planning import resolve
from plumbline_web.validations.submission import Submission
from plumbline_web.validations.sweeping import HOST_SILENT_S, count_messages, sweep
from plumbline_web.validations.tasks import forget_namesake, tell_pool
from plumbline_web.validations.work import perform
from plumbline_web.validations.work.heart import stop_file
from tests.web.running import empty_queues, sweep_here, wait_for, wait_until, worker
from workers.queues import VISIBILITY_TIMEOUT_S
from workers.sandbox import list_tagged

pytestmark = pytest.mark.django_db(transaction=True)

TRAINER = Submission(framework="transformers", model="tiny:qwen3", data="gsm8k_sample")
LOSS_ONLY = replace(TRAINER, checks=("step.loss",))


def running_capture() -> Job | None:
    return Job.objects.filter(kind=Kind.CAPTURE, state=JobState.RUNNING, process_group__isnull=False).first()


@pytest.mark.usefixtures("cold")
def test_a_killed_workers_capture_runs_again_once_and_leaves_no_orphan(owner: User, tmp_path: Path) -> None:
    assert VISIBILITY_TIMEOUT_S > 3600
    validation, _ = submit(LOSS_ONLY, owner=owner)
    with worker(tmp_path / "first.log") as first:
        wait_until(lambda: running_capture() is not None, what="the capture to run")
        job = running_capture()
        assert job is not None
        tag = lease_tag(job.pk, job.token)
        wait_until(lambda: bool(list_tagged(tag)), what="its processes")
        for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
            if process.pid not in {p.pid for p in list_tagged(tag)}:
                process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        first.wait(timeout=10)
    assert list_tagged(tag), "the framework outlived its worker, so that there is an orphan to end"
    with worker(tmp_path / "second.log"):
        (done,) = wait_for(validation, limit_s=120)
    assert time.monotonic() - killed < 120
    assert not list_tagged(tag)
    assert list((Path(settings.DATA) / "scratch").iterdir()) == []
    assert (done.state, done.verdict, done.passed) == ("done", "pass", 1)
    job.refresh_from_db()
    assert (job.state, job.attempts, job.token) == ("done", 2, 2)
    assert FrameworkRun.objects.count() == Capture.objects.count() == 1
    assert done.results.count() == 1


def test_a_stopped_worker_gives_its_job_back_at_once(owner: User, tmp_path: Path) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    with worker(tmp_path / "first.log") as first:
        wait_until(lambda: running_capture() is not None, what="the capture to run")
        first.send_signal(signal.SIGTERM)
        first.wait(timeout=15)
    job = Job.objects.get(kind=Kind.CAPTURE)
    assert (job.state, job.attempts) == ("queued", 0)
    assert not list_tagged(lease_tag(job.pk, job.token))
    assert Validation.objects.get(pk=validation.pk).is_open


def test_the_stop_of_an_earlier_worker_with_the_same_number_is_forgotten() -> None:
    file = stop_file(os.getpid())
    tell_pool()
    assert file.exists()
    forget_namesake()
    assert not file.exists()


@pytest.mark.usefixtures("cold")
def test_a_cancellation_ends_the_run_within_two_seconds(owner: User, tmp_path: Path) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    with worker(tmp_path / "worker.log"):
        wait_until(lambda: running_capture() is not None, what="the capture to run")
        job = running_capture()
        assert job is not None
        begun = time.monotonic()
        cancel(validation, by=owner)
        wait_until(lambda: Job.objects.get(pk=job.pk).state == JobState.CANCELLED, what="the job to end", limit_s=10)
        seconds = time.monotonic() - begun
    assert not list_tagged(lease_tag(job.pk, job.token))
    assert seconds < 4, seconds  # two on an idle machine; the tests share theirs
    validation.refresh_from_db()
    assert (validation.state, validation.verdict) == ("cancelled", "")
    assert list(FrameworkRun.objects.values_list("state", flat=True)) == ["cancelled"]


@pytest.fixture
def job(owner: User) -> Job:
    submit(LOSS_ONLY, owner=owner)
    return Job.objects.get()


def expire(job: Job, *, host: str = "", seconds: float = 1.0) -> None:
    changes: dict[str, object] = {"lease_until": Now() - timedelta(seconds=seconds)}
    Job.objects.filter(pk=job.pk).update(**changes, **({"host": host} if host else {}))


def test_a_late_writer_with_an_old_token_is_refused(job: Job) -> None:
    host = os.uname().nodename
    old = take(job.pk, worker="first", host=host)
    assert old == Lease(job.pk, 1)
    expire(job)
    sweep(host=host)
    new = take(job.pk, worker="second", host=host)
    assert new == Lease(job.pk, 2)
    for write in (
        lambda: beat(old),
        lambda: lock(old),
        lambda: note_process_group(old, 1),
        lambda: write_line(old, 0, "late"),
    ):
        with pytest.raises(LeaseLost, match="the lease 1 is no longer valid"), transaction.atomic():
            write()
    assert not LogLine.objects.exists()
    assert beat(new) is False


def test_a_job_that_meets_a_database_that_is_away_begins_again(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(*_: object) -> None:
        raise OperationalError("terminating connection due to administrator command")

    monkeypatch.setitem(perform.KINDS, Kind.CAPTURE, lose)
    perform.perform(job.pk, worker="w", host=os.uname().nodename)
    assert "the database does not answer" in caplog.text
    job.refresh_from_db()
    assert (job.state, job.error) == (JobState.RUNNING, "")
    expire(job)
    sweep_here()
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_what_breaks_in_a_worker_is_a_sentence_and_its_traceback_stays_in_the_log(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setitem(perform.KINDS, Kind.CAPTURE, fail)
    perform.perform(job.pk, worker="w", host="h")
    job.refresh_from_db()
    assert (job.state, job.error) == (
        JobState.FAILED,
        "RuntimeError: no such thing; the worker's log has the traceback",
    )
    assert "Traceback" in caplog.text
    assert job.error in Validation.objects.get().error


def test_a_second_message_for_a_running_job_does_nothing(job: Job) -> None:
    assert take(job.pk, worker="first", host="a") is not None
    assert take(job.pk, worker="second", host="b") is None


def test_a_job_of_a_silent_machine_goes_to_another_after_a_minute(job: Job) -> None:
    take(job.pk, worker="first", host="elsewhere")
    expire(job, seconds=HOST_SILENT_S - 10)
    sweep(host=os.uname().nodename)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING  # its machine was asked to end the processes first
    expire(job, seconds=HOST_SILENT_S + 1)
    sweep(host=os.uname().nodename)
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_a_job_whose_workers_die_three_times_fails_its_validation(job: Job) -> None:
    host = os.uname().nodename
    for _ in range(3):
        assert take(job.pk, worker="w", host=host) is not None
        expire(job)
        sweep(host=host)
    job.refresh_from_db()
    validation = Validation.objects.get()
    assert (job.state, validation.state) == (JobState.FAILED, "failed")
    assert "its worker died 3 times" in validation.error


def test_a_lost_message_is_sent_again(job: Job) -> None:
    empty_queues()
    old = Now() - timedelta(seconds=60)
    Job.objects.filter(pk=job.pk).update(created_at=old, dispatched_at=old)
    sweep_here()
    assert count_messages("cpu") == 1
    sweep_here()
    assert count_messages("cpu") == 1  # it is on its way


def test_two_open_jobs_for_one_run_cannot_be(job: Job) -> None:
    with pytest.raises(IntegrityError, match="job_once_a_run"), transaction.atomic():
        open_job(Kind.CAPTURE, queue="cpu", run=job.run)


def test_equal_asks_at_the_same_moment_are_one_run_and_cancelling_all_deadlocks_nothing(owner: User) -> None:
    resolve(LOSS_ONLY)  # imports and the model's cache are not what is raced for

    def ask(number: int) -> int:
        try:
            return submit(LOSS_ONLY, owner=owner)[0].pk
        finally:
            connection.close()

    def stop(number: int) -> None:
        try:
            cancel(Validation.objects.get(pk=number), by=owner)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(ask, range(8)))
        assert FrameworkRun.objects.count() == Job.objects.count() == 1
        list(pool.map(stop, numbers))
    assert set(Validation.objects.values_list("state", flat=True)) == {"cancelled"}
    assert FrameworkRun.objects.get().state == "cancelled"


def test_twenty_validations_on_two_workers_share_their_captures(owner: User, tmp_path: Path) -> None:
    """Four different asks, five times each, half of them before any worker is there."""
    ended = ("run.completes",)
    asked = [
        replace(TRAINER, checks=("run.completes", "step.loss")),
        replace(TRAINER, checks=ended),
        Submission(framework="trl", model="tiny:qwen3", data="tulu3_sample", checks=ended),
        replace(TRAINER, checks=ended, settings={"batch": 1}),
    ]
    validations = [submit(asked[n % 4], owner=owner)[0] for n in range(10)]
    with worker(tmp_path / "one.log"), worker(tmp_path / "two.log"):
        validations += [submit(asked[n % 4], owner=owner)[0] for n in range(10, 20)]
        done = wait_for(*validations, limit_s=400)
    assert [(v.state, v.verdict, v.passed) for v in done] == [("done", "pass", 1 + (n % 4 == 0)) for n in range(20)]
    # the first two asks need the same run
    assert FrameworkRun.objects.count() == Capture.objects.count() == 3
    assert Job.objects.filter(kind=Kind.CAPTURE).count() == 3
    assert Job.objects.filter(kind=Kind.REFERENCE).count() == 1
    assert Job.objects.filter(kind=Kind.JUDGE).count() == 20
    assert Job.objects.exclude(state=JobState.DONE).count() == 0
    assert {job.attempts for job in Job.objects.all()} == {1}
