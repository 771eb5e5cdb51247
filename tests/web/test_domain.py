"""What people do to a validation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from checks.faults import FAULTS
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.artefacts.models import Artefact
from plumbline_web.artefacts.store import MissingArtefact, locate, materialise, open_artefact, store_file, store_text
from plumbline_web.jobs.domain import take
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.timeline.models import Event
from plumbline_web.validations.advance import advance_all
from plumbline_web.validations.completion import complete, overall
from plumbline_web.validations.domain import Refused, cancel, preview, rejudge, retry, submission_of, submit
from plumbline_web.validations.enums import RunState, State
from plumbline_web.validations.models import Capture, Cell, CheckResult, Finding, FrameworkRun, Validation
from plumbline_web.validations.states import IllegalMove, move, move_run
from plumbline_web.validations.submission import InvalidSubmission, Submission
from tests.web import factories

pytestmark = pytest.mark.django_db

TRAINER = Submission(framework="transformers", model="tiny:qwen3", data="gsm8k_sample")
LOSS_ONLY = replace(TRAINER, checks=("step.loss",))


@pytest.fixture
def colleague() -> User:
    return factories.make_user(Role.SUBMITTER, username="colleague")


def end_runs(validation: Validation) -> None:
    """As if workers had run everything that was asked for."""
    for run in validation.runs.filter(state__in=[RunState.QUEUED, RunState.RUNNING]):
        run.jobs.update(state=JobState.DONE)
        if run.state == RunState.QUEUED:
            move_run(run, RunState.RUNNING)
        move_run(run, RunState.ENDED, ending="completed", exit_code=0)
        factories.make_capture(run)
        advance_all(run)


def finish(validation: Validation, **statuses: str) -> Validation:
    """End a validation with verdicts, `step_loss="fail"` among healthy ones."""
    end_runs(validation)
    verdicts = factories.verdicts_with(**{name.replace("_", "."): status for name, status in statuses.items()})
    locked = Validation.objects.select_for_update().get(pk=validation.pk)
    locked.jobs.filter(kind=Kind.JUDGE).update(state=JobState.DONE)
    if locked.state == State.QUEUED:
        move(locked, State.RUNNING, "started")
    complete(locked, {"verdicts": verdicts, "warnings": []})
    return locked


def test_a_submission_is_planned_stored_and_queued(owner: User) -> None:
    validation, new = submit(TRAINER, owner=owner)
    assert new
    assert (validation.state, validation.phase, validation.number) == (
        "queued",
        "waiting for a worker",
        f"V-{validation.pk}",
    )
    assert [run["role"] for run in validation.plan["runs"]] == ["run", "merged"]
    assert {"check": "data.packing", "reason": "the run does not pack (packing=false)"} in validation.plan["skipped"]
    assert {"check": "parallel.data", "reason": "the run is of one process"} in validation.plan["skipped"]
    assert validation.spec["batch"] == 2
    assert sorted(validation.validation_runs.values_list("role", "reused")) == [("merged", False), ("run", False)]
    assert list(Job.objects.values_list("kind", "queue", "state")) == [("capture", "cpu", "queued")] * 2
    assert list(Event.objects.values_list("text", "actor")) == [("submitted", owner.pk)]


def test_equal_needs_of_two_validations_are_one_run(owner: User, colleague: User) -> None:
    submit(TRAINER, owner=owner)
    second, _ = submit(LOSS_ONLY, owner=colleague)
    assert list(second.validation_runs.values_list("role", "reused")) == [("run", True)]
    assert Job.objects.count() == 2
    other, _ = submit(replace(LOSS_ONLY, settings={"seed": 1}), owner=owner)
    assert list(other.validation_runs.values_list("reused", flat=True)) == [False]
    assert Job.objects.count() == 3


def test_a_stored_capture_is_used_again_unless_a_fresh_one_is_asked_for(owner: User) -> None:
    first, _ = submit(LOSS_ONLY, owner=owner)
    end_runs(first)
    second, _ = submit(LOSS_ONLY, owner=owner)
    assert second.validation_runs.get().reused
    fresh, _ = submit(replace(LOSS_ONLY, fresh=True), owner=owner)
    assert not fresh.validation_runs.get().reused
    end_runs(fresh)
    Artefact.objects.update(missing_since="2026-01-01T00:00Z")
    third, _ = submit(LOSS_ONLY, owner=owner)
    assert not third.validation_runs.get().reused


def test_a_run_that_counts_memory_is_asked_to_and_is_no_other_need(owner: User) -> None:
    five = replace(TRAINER, checks=("run.completes", "memory.step"), settings={"steps": 5}, full=True)
    validation, _ = submit(five, owner=owner)
    runs = {link.role: link.run for link in validation.validation_runs.select_related("run")}
    assert {role: (run.memory, run.full) for role, run in runs.items()} == {
        "run": (False, True),
        "measured": (True, False),  # whole tensors that are kept would be counted
    }
    # Of five steps the measured run has the spec of the asked one, and is still another run.
    assert runs["run"].spec == runs["measured"].spec
    assert runs["run"].need != runs["measured"].need


def test_a_capture_that_lacks_something_is_never_used_again(owner: User) -> None:
    first, _ = submit(LOSS_ONLY, owner=owner)
    end_runs(first)
    Capture.objects.update(whole=False)
    second, _ = submit(LOSS_ONLY, owner=owner)
    assert not second.validation_runs.get().reused


def test_a_preview_says_what_a_submission_takes_and_queues_nothing(owner: User) -> None:
    seen = preview(TRAINER, user=owner)
    assert [(run.role, run.steps, run.rows, run.reused) for run in seen.runs] == [
        ("run", (1, 3), 12, False),
        ("merged", (1,), 4, False),
    ]
    assert ("data.packing", "the run does not pack (packing=false)") in seen.skipped
    assert 1e9 < seen.memory_bytes < 2e9
    assert seen.expected_s is None
    assert not Validation.objects.exists()
    submit(LOSS_ONLY, owner=owner)
    assert [run.reused for run in preview(TRAINER, user=owner).runs] == [True, False]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"framework": "trlx"}, "framework"),
        ({"model": "tiny:qwen9"}, "model"),
        ({"data": "nothing_here"}, "data"),
        ({"checks": ("step.lost",)}, "checks"),
        ({"settings": {"packing": True}}, "settings.packing"),
        ({"settings": {"seq_len": 100_000}}, "settings.seq_len"),
        ({"inject": "no-such-fault"}, "inject"),
    ],
)
def test_a_request_that_cannot_be_met_names_its_field_and_queues_nothing(
    owner: User, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidSubmission) as caught:
        submit(replace(TRAINER, **changes), owner=owner)
    assert list(caught.value.errors) == [field]
    assert not Validation.objects.exists()
    assert not Job.objects.exists()


def test_a_double_submit_is_one_validation(owner: User, colleague: User) -> None:
    first, new = submit(LOSS_ONLY, owner=owner, idempotency_key="k")
    again, second_new = submit(LOSS_ONLY, owner=owner, idempotency_key="k")
    assert (again.pk, new, second_new) == (first.pk, True, False)
    with pytest.raises(Refused, match=f"was used for V-{first.pk}, which asks for something else") as caught:
        submit(TRAINER, owner=owner, idempotency_key="k")
    assert caught.value.code == "key_reused"
    assert submit(LOSS_ONLY, owner=colleague, idempotency_key="k")[1]


def test_a_viewer_may_not_submit() -> None:
    with pytest.raises(Refused, match="ask an administrator") as caught:
        submit(LOSS_ONLY, owner=factories.make_user(Role.VIEWER))
    assert caught.value.code == "forbidden"


def test_a_cancelled_validation_ends_its_runs_and_a_second_cancellation_changes_nothing(owner: User) -> None:
    validation, _ = submit(TRAINER, owner=owner)
    cancelled = cancel(validation, by=owner)
    assert (cancelled.state, cancelled.version) == ("cancelled", 2)
    assert set(FrameworkRun.objects.values_list("state", flat=True)) == {"cancelled"}
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    again = cancel(validation, by=owner)
    assert (again.state, again.version) == ("cancelled", 2)
    assert Event.objects.filter(text="cancelled").count() == 1


def test_a_run_that_another_validation_needs_goes_on(owner: User, colleague: User) -> None:
    first, _ = submit(TRAINER, owner=owner)
    second, _ = submit(LOSS_ONLY, owner=colleague)
    cancel(first, by=owner)
    assert dict(first.validation_runs.values_list("role", "run__state")) == {"run": "queued", "merged": "cancelled"}
    cancel(second, by=colleague)
    assert set(FrameworkRun.objects.values_list("state", flat=True)) == {"cancelled"}


def test_a_running_job_is_asked_to_end(owner: User) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    job = Job.objects.get()
    take(job.pk, worker="w", host="h")
    cancel(validation, by=owner)
    job.refresh_from_db()
    assert (job.state, job.cancel_asked) == ("running", True)
    # the same need asked again meanwhile is a run of its own
    again, _ = submit(LOSS_ONLY, owner=owner)
    assert not again.validation_runs.get().reused


def test_who_may_cancel(owner: User, colleague: User) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    with pytest.raises(Refused, match="belongs to owner; only its owner or a triager") as caught:
        cancel(validation, by=colleague)
    assert caught.value.code == "forbidden"
    with pytest.raises(Refused):
        cancel(validation, by=factories.make_user(Role.VIEWER))
    assert cancel(validation, by=factories.make_user(Role.TRIAGER)).state == "cancelled"


def test_a_stale_form_is_refused(owner: User) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    finish(validation)
    with pytest.raises(Refused, match=f"V-{validation.pk} has changed since the page was drawn: it is done") as caught:
        cancel(validation, by=owner, version=1)
    assert caught.value.code == "stale"
    with pytest.raises(Refused, match="has ended; there is nothing to cancel") as ended:
        cancel(validation, by=owner)
    assert ended.value.code == "illegal_state"


def test_results_counts_findings_and_the_overview_follow_the_verdicts(owner: User) -> None:
    validation, _ = submit(TRAINER, owner=owner)
    done = finish(validation, step_loss="fail")
    assert (done.state, done.verdict, done.failed, done.phase) == ("done", "fail", 1, "")
    assert done.passed + done.failed + done.skipped + done.inconclusive + done.errors == CheckResult.objects.count()
    finding = Finding.objects.get()
    assert (finding.check_name, finding.silent, finding.state) == ("step.loss", True, "open")
    cell = Cell.objects.get()
    assert (cell.latest, cell.conclusive, cell.last_good, cell.first_bad, cell.count) == (done, done, None, done, 1)


def test_the_overview_names_last_good_and_first_bad(owner: User) -> None:
    ended = []
    for seed, status in enumerate(("pass", "fail", "fail", "inconclusive")):
        validation, _ = submit(replace(LOSS_ONLY, settings={"seed": seed}), owner=owner)
        ended.append(finish(validation, step_loss=status))
    good, first, second, open_ = ended
    cell = Cell.objects.get()
    assert (cell.last_good, cell.first_bad, cell.conclusive, cell.latest) == (good, first, second, open_)
    again, _ = submit(replace(LOSS_ONLY, settings={"seed": 9}), owner=owner)
    finish(again)
    cell.refresh_from_db()
    assert (cell.last_good, cell.first_bad) == (again, None)


def test_an_injected_fault_does_not_speak_about_the_framework(owner: User) -> None:
    validation, _ = submit(replace(LOSS_ONLY, inject=FAULTS[0].slug), owner=owner)
    end_runs(validation)
    finish(validation, step_loss="fail")
    assert Cell.objects.count() == 0


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({"pass": 3, "skipped": 1}, "pass"),
        ({"pass": 3, "fail": 1, "error": 1}, "fail"),
        ({"pass": 3, "error": 1, "inconclusive": 1}, "error"),
        ({"pass": 3, "inconclusive": 1}, "inconclusive"),
        ({"skipped": 4}, "inconclusive"),
        ({}, "inconclusive"),
    ],
)
def test_the_overall_verdict_is_the_worst_that_says_something(counts: dict[str, int], verdict: str) -> None:
    assert overall(counts) == verdict


def test_a_repeated_judgement_keeps_what_is_equal_and_records_what_changed(owner: User) -> None:
    validation, _ = submit(TRAINER, owner=owner)
    finish(validation, step_loss="fail")
    before = set(CheckResult.objects.values_list("pk", flat=True))
    locked = Validation.objects.select_for_update().get(pk=validation.pk)
    move(locked, State.RUNNING, "judged again", error="judging broke before")
    complete(locked, {"verdicts": factories.verdicts_with(**{"step.loss": "pass"}), "warnings": []})
    current = CheckResult.objects.filter(superseded_at__isnull=True)
    assert len(set(current.values_list("pk", flat=True)) - before) == 1
    assert CheckResult.objects.filter(superseded_at__isnull=False).get().status == "fail"
    assert Event.objects.filter(text="step.loss changed from fail to pass").count() == 1
    assert Finding.objects.get().state == "gone"
    locked.refresh_from_db()
    assert (locked.verdict, locked.error, Cell.objects.get().count) == ("pass", "", 1)


def test_judging_again_needs_the_stored_files(owner: User) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    with pytest.raises(Refused, match="is queued; only one that is done can be judged again"):
        rejudge(validation, by=owner)
    finish(validation)
    with pytest.raises(Refused, match="is gone from the disk; retry with fresh captures") as caught:
        rejudge(validation, by=owner)  # the factory's captures have rows, and no files
    assert caught.value.code == "missing_artefact"


def test_a_broken_off_repeated_judgement_keeps_the_verdicts(owner: User) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    done = finish(validation)
    move(done, State.RUNNING, "judged again")
    stopped = cancel(done, by=owner)
    assert (stopped.state, stopped.verdict) == ("done", "pass")


def test_a_retry_asks_the_same_with_fresh_captures(owner: User) -> None:
    asked = replace(
        LOSS_ONLY, settings={"batch": 1, "lora_targets": ("q_proj",), "lora": True}, memory_limit_bytes=10**10
    )
    validation, _ = submit(asked, owner=owner)
    with pytest.raises(Refused, match="is still under way"):
        retry(validation, by=owner)
    finish(validation)
    again = retry(validation, by=owner)
    assert again.cloned_from == validation
    assert submission_of(again) == replace(submission_of(validation), fresh=True)
    assert not again.validation_runs.get().reused


def test_a_move_that_the_state_machine_does_not_have_is_refused(owner: User) -> None:
    validation, _ = submit(LOSS_ONLY, owner=owner)
    with pytest.raises(IllegalMove, match=f"V-{validation.pk} cannot go from queued to done"):
        move(validation, State.DONE, "?")
    run = validation.runs.get()
    with pytest.raises(IllegalMove, match="cannot go from queued to ended"):
        move_run(run, RunState.ENDED)


def test_messages_go_out_when_the_transaction_is_through(
    owner: User, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=False) as callbacks:
        submit(TRAINER, owner=owner)
    assert len(callbacks) == 2
    assert connection.in_atomic_block


def test_the_store_keeps_a_content_once_and_notices_when_it_is_gone(tmp_path: Path, settings: Settings) -> None:
    settings.DATA = tmp_path / "data"
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").write_bytes(b"content")
    first, second = store_file(tmp_path / "a"), store_file(tmp_path / "b")
    assert first == second == store_text("content")
    assert first.digest == "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    with open_artefact(first) as file:
        assert file.read() == b"content"
    materialise(first, tmp_path / "laid" / "out")
    assert (tmp_path / "laid" / "out").read_bytes() == b"content"
    path = locate(first.digest)
    path.chmod(0o644)
    path.write_bytes(b"changed")  # of the same size
    for read in (lambda: materialise(first, tmp_path / "again"), lambda: open_artefact(first)):
        with pytest.raises(MissingArtefact, match=r"ed7002b439e9 \(7 bytes\) is missing or changed on disk"):
            read()
    path.unlink()
    with pytest.raises(MissingArtefact):
        open_artefact(first)
    first.refresh_from_db()
    assert first.missing_since is not None
    assert store_file(tmp_path / "a").missing_since is None  # found again
