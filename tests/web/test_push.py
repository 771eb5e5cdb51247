"""A capture that was recorded elsewhere: taken up where its upload broke off, and a validation like any other."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from checks import roles
from checks.models import resolve_model
from checks.registry import find_checks
from checks.samples import resolve_data
from checks.spec import RunSpec
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.jobs.enums import JobState, Kind
from plumbline_web.jobs.models import Job
from plumbline_web.validations.domain import rejudge, retry, submit
from plumbline_web.validations.enums import RunState
from plumbline_web.validations.models import Capture, FrameworkRun, Validation
from plumbline_web.validations.origin import read_origin
from plumbline_web.validations.submission import InvalidSubmission, Submission
from tests.web.factories import make_artefact, make_capture, make_user, make_validation
from tests.web.test_api_captures import TENSORS, UPLOADS, complete, manifest, safetensors, whole
from workers.frameworks import adapter
from workers.planner import make_plan
from workers.push.judging import keep_asked_run
from workers.runner import run_framework

RECORDED = {
    "environment": {
        "python": "3.12.3",
        "platform": "Linux-6.8-x86_64-host-of-mine",
        "packages": {"torch": "2.9.1", "transformers": "5.1.0", "nemo-automodel": "0.7.0", "secret": "x"},
        "hardware": {"cpu": "a", "cores": 8, "memory_bytes": 1, "gpus": ["NVIDIA H200", "NVIDIA H200"]},
    },
    "world_size": 2,
    "exit_code": 0,
    "started": "2026-01-01T10:00:00+00:00",
    "finished": "2026-01-01T10:01:30+00:00",
    "command": ["torchrun", "/home/anna/secret/train.py"],
}


@pytest.fixture(autouse=True)
def data(settings: Any, tmp_path: Path) -> Path:
    settings.DATA = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def user(db: None) -> User:
    return make_user(Role.SUBMITTER, username="anna")


def bearer(user: User, *scopes: str) -> dict[str, str]:
    _, secret = create_token(user, name="push", scopes=list(scopes or ("read", "upload", "submit")), days=1)
    return {"Authorization": f"Bearer {secret}"}


def announce(client: Client, headers: dict[str, str], files: dict[str, bytes], **more: Any) -> Any:
    described = [
        {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]
    body = json.dumps({"files": described, "resume": True} | more)
    return client.post(UPLOADS, body, content_type="application/json", headers=headers)


def send(client: Client, headers: dict[str, str], upload: str, number: int, content: bytes, **more: Any) -> Any:
    digest = more.pop("digest", base64.b64encode(hashlib.sha256(content).digest()).decode())
    return client.put(
        f"{UPLOADS}/{upload}/files/{number}?offset={more.pop('offset', 0)}",
        content,
        content_type="application/octet-stream",
        headers=headers | {"Content-Digest": f"sha-256=:{digest}:"},
    )


def push(client: Client, headers: dict[str, str], files: dict[str, bytes]) -> Any:
    upload = announce(client, headers, files).json()["id"]
    for number, content in enumerate(files.values()):
        send(client, headers, upload, number, content)
    return complete(client, headers, upload)


def upload_row(user: User, **fields: Any) -> Capture:
    """An uploaded capture as `intake` writes it."""
    names = ("manifest.json", TENSORS)
    origin = read_origin(RECORDED | fields)
    capture = Capture.objects.create(
        uploaded_by=user,
        digest="d" * 64,
        size=10,
        steps=[1],
        recorded={**vars(origin), "packages": dict(origin.packages)},
    )
    for name in names:
        capture.files.create(name=name, artefact=make_artefact(name))
    return capture


def asked(capture: Capture, /, **changes: Any) -> Submission:
    fields: dict[str, Any] = {
        "framework": "nemo-automodel",
        "model": "tiny:qwen3",
        "data": "gsm8k_sample",
        "capture": capture.pk,
    }
    return Submission(**(fields | changes))


def test_the_same_announcement_finds_the_upload_that_broke_off(client: Client, user: User) -> None:
    files, headers = whole(), bearer(user)
    first = announce(client, headers, files)
    assert first.status_code == 201
    send(client, headers, first.json()["id"], 1, files[TENSORS][:40])
    again = announce(client, headers, dict(reversed(files.items())))
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert {file["name"]: file["received"] for file in again.json()["files"]} == {"manifest.json": 0, TENSORS: 40}
    assert announce(client, headers, files, resume=False).json()["id"] != first.json()["id"]
    other = announce(client, headers, files | {TENSORS: safetensors(b"\0" * 16)})
    assert (other.status_code, other.json()["files"][1]["received"]) == (201, 0)
    stranger = bearer(make_user(Role.SUBMITTER, username="ben"))
    assert announce(client, stranger, files).status_code == 201
    assert announce(client, headers, files, resume="yes").json()["error"]["fields"]["resume"].startswith("is neither")


def test_what_was_uploaded_whole_is_not_uploaded_again(client: Client, user: User) -> None:
    files, headers = whole(), bearer(user)
    capture = push(client, headers, files).json()["id"]
    again = announce(client, headers, files)
    assert (again.status_code, again.json()["capture"]) == (200, capture)
    assert complete(client, headers, again.json()["id"]).json()["id"] == capture
    assert Capture.objects.count() == 1
    stranger = bearer(make_user(Role.SUBMITTER, username="ben"))
    assert announce(client, stranger, files).status_code == 201
    Capture.objects.get().files.get(name=TENSORS).artefact.__class__.objects.update(missing_since="2026-01-01T00:00Z")
    assert announce(client, headers, files).status_code == 201


def test_a_chunk_is_kept_only_where_its_digest_agrees(client: Client, user: User, data: Path) -> None:
    files, headers = whole(), bearer(user)
    upload = announce(client, headers, files).json()["id"]
    wrong = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    refused = send(client, headers, upload, 1, files[TENSORS], digest=wrong)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "wrong_digest")
    assert (data / "uploads" / upload / "content" / TENSORS).stat().st_size == 0
    refused = send(client, headers, upload, 1, files[TENSORS], digest="x")
    assert (refused.status_code, list(refused.json()["error"]["fields"])) == (400, ["Content-Digest"])
    assert send(client, headers, upload, 1, files[TENSORS]).json()["files"][1]["received"] == len(files[TENSORS])
    refused = send(client, headers, upload, 1, files[TENSORS])
    assert refused.json()["error"]["fields"] == {"offset": str(len(files[TENSORS]))}


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_manifest_that_nests_too_deeply_is_refused_before_it_is_parsed(
    client: Client, user: User, opening: bytes
) -> None:
    response = push(client, bearer(user), whole() | {"manifest.json": opening * 65})
    assert response.status_code == 400
    assert "nests deeper than 64 levels" in response.json()["error"]["message"]
    shallow = push(client, bearer(user), whole() | {"manifest.json": manifest(note='[{\\"[[' * 100)})
    assert shallow.status_code == 201


def test_what_a_capture_says_of_its_process_names_no_host(client: Client, user: User) -> None:
    origin = read_origin(RECORDED)
    assert origin.description == ("2 ranks, 2 × NVIDIA H200 in sight, Python 3.12.3, torch 2.9.1, transformers 5.1.0")
    assert (origin.elapsed_s, origin.device, origin.exit_code) == (90.0, "NVIDIA H200", 0)
    assert read_origin(RECORDED | {"exit_code": -9}).exit_code == 137
    strange = read_origin({"environment": {"packages": {"a": 1, "b\0": "2", "c": "3"}, "python": 3}, "world_size": "x"})
    assert (strange.packages, strange.description, strange.elapsed_s) == ({"c": "3"}, "no recorded rank, CPU", None)
    push(client, bearer(user), whole())
    assert Capture.objects.get().recorded["packages"] == {"trl": "1.0", "transformers": "5.0"}


def test_a_pushed_capture_is_a_validation_that_waits_for_no_run(user: User) -> None:
    capture = upload_row(user)
    validation, _ = submit(asked(capture), owner=user)
    run = validation.runs.get()
    assert (run.state, run.ending, run.exit_code, run.elapsed_s) == (RunState.ENDED, "completed", 0, 90.0)
    assert (run.capture, validation.pushed) == (capture, capture)
    assert not run.jobs.filter(kind=Kind.CAPTURE).exists()
    assert (validation.environment.version, validation.environment.python) == ("0.7.0", "3.12.3")
    assert "secret" not in validation.environment.packages
    reasons = {skip["check"]: skip["reason"] for skip in validation.plan["skipped"]}
    assert reasons["step.accumulation"] == "a pushed capture has no such run: framework run on merged rows"
    assert [entry["role"] for entry in validation.plan["runs"]] == ["run"]
    assert validation.jobs.filter(kind=Kind.JUDGE).exists() or run.jobs.filter(kind=Kind.REFERENCE).exists()


def test_an_ordinary_validation_never_takes_up_a_pushed_capture(user: User) -> None:
    capture = upload_row(user)
    pushed, _ = submit(asked(capture, framework="transformers"), owner=user)
    ordinary, _ = submit(asked(capture, framework="transformers", capture=None), owner=user)
    assert not set(pushed.runs.all()) & set(ordinary.runs.all())
    assert FrameworkRun.objects.get(pk=ordinary.runs.order_by("pk")[0].pk).state == RunState.QUEUED


def test_a_capture_can_be_judged_as_two_things_and_twice_as_one(user: User) -> None:
    capture = upload_row(user)
    first, _ = submit(asked(capture), owner=user)
    same, _ = submit(asked(capture, checks=("run.completes",)), owner=user)
    other, _ = submit(asked(capture, settings={"batch": 4}), owner=user)
    assert first.runs.get() == same.runs.get() != other.runs.get()
    copied = other.runs.get().capture
    assert copied.pk != capture.pk
    assert [(file.name, file.artefact) for file in copied.files.order_by("pk")] == [
        (file.name, file.artefact) for file in capture.files.order_by("pk")
    ]
    assert other.pushed == capture


@pytest.mark.parametrize(("code", "ending", "number"), [(1, "failed", None), (-9, "failed", 9)])
def test_a_command_that_failed_there_is_a_run_that_failed(
    user: User, code: int, ending: str, number: int | None
) -> None:
    validation, _ = submit(asked(upload_row(user, exit_code=code)), owner=user)
    assert (validation.runs.get().ending, validation.runs.get().signal) == (ending, number)


def test_what_cannot_be_asked_of_a_pushed_capture_is_refused_by_name(user: User) -> None:
    capture = upload_row(user)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"capture": 10**9}, "capture", "there is no uploaded capture"),
        ({"inject": "wrong-eps"}, "inject", "no meaning for a capture that was recorded elsewhere"),
        ({"full": True}, "full", "no meaning"),
        ({"fresh": True}, "fresh", "no meaning"),
        ({"framework": "Ne Mo"}, "framework", "is no name of a framework"),
        ({"settings": {"steps": 0}}, "settings.steps", "out of range"),
        ({"model": "/etc"}, "model", "not under an allowed directory"),
        ({"settings": {"synced": "x"}}, "settings.synced", ""),
    ]
    for changes, field, sentence in cases:
        with pytest.raises(InvalidSubmission) as refusal:
            submit(asked(capture, **changes), owner=user)
        assert list(refusal.value.errors) == [field]
        assert sentence in refusal.value.errors[field]
    assert not Validation.objects.exists()


def test_a_capture_that_was_recorded_here_is_not_one_that_was_pushed(user: User) -> None:
    run = make_validation(owner=user).runs.first()
    assert run is not None
    with pytest.raises(InvalidSubmission, match="there is no uploaded capture"):
        submit(asked(make_capture(run)), owner=user)


def test_what_is_no_number_of_a_capture_is_refused(client: Client, user: User) -> None:
    headers = bearer(user)
    for given in (True, "12", 0, -1, 1.5, 2**70):
        body = {"framework": "trl", "model": "tiny:qwen3", "data": "gsm8k_sample", "capture": given}
        response = client.post("/api/v1/validations", json.dumps(body), "application/json", headers=headers)
        assert response.status_code == 400
        assert "is no number of a capture" in response.json()["error"]["fields"]["capture"]


def test_retrying_judges_the_same_capture_as_a_new_validation(user: User) -> None:
    capture = upload_row(user)
    validation, _ = submit(asked(capture), owner=user)
    Job.objects.update(state=JobState.CANCELLED)
    Validation.objects.update(state="cancelled")
    again = retry(validation, by=user)
    assert (again.pushed, again.runs.get(), again.cloned_from) == (capture, validation.runs.get(), validation)


def test_a_token_that_may_only_upload_submits_nothing(client: Client, user: User) -> None:
    headers = bearer(user, "read", "upload")
    assert client.get("/api/v1/me", headers=headers).json()["scopes"] == ["read", "upload"]
    body = {"framework": "trl", "model": "tiny:qwen3", "data": "gsm8k_sample", "capture": upload_row(user).pk}
    response = client.post("/api/v1/validations", json.dumps(body), content_type="application/json", headers=headers)
    assert response.status_code == 403


def test_replicas_are_judged_without_another_run() -> None:
    spec = RunSpec("plain", Path("m"), Path("d"), dp_size=2, sharding="ddp")
    asked_checks = ("parallel.replicas", "parallel.gradients", "data.mask", "step.loss")
    plan = keep_asked_run(make_plan(spec, find_checks(asked_checks), pushed=True))
    assert [check.name for check in plan.judged] == ["data.mask", "parallel.replicas"]
    assert [(run.role, run.checks) for run in plan.runs] == [(roles.Role.RUN, ("data.mask", "parallel.replicas"))]
    reasons = {check.name: reason for check, reason in plan.skipped}
    assert reasons["parallel.gradients"] == "a pushed capture has no such run: framework run of one process"
    assert "the run is of 2 processes" in reasons["step.loss"]


@pytest.mark.parametrize(("steps", "watched"), [(3, True), (20, False)])
def test_what_reads_the_log_is_skipped_and_a_short_curve_is_read_from_the_capture(steps: int, watched: bool) -> None:
    spec = RunSpec("plain", Path("m"), Path("d"), steps=steps)
    asked_checks = ("step.schedule", "step.gradients", "convergence")
    plan = keep_asked_run(make_plan(spec, find_checks(asked_checks), pushed=True))
    curve = ["convergence.curve"] if watched else []
    assert [check.name for check in plan.judged] == ["step.gradients", *curve]
    reasons = {check.name: reason for check, reason in plan.skipped}
    assert reasons["step.schedule"] == "reads the framework's log, which is no part of a capture"


def record(directory: Path) -> Path:
    """One step of the plain loop, recorded as on a machine of its own."""
    spec = RunSpec(
        "plain", resolve_model("tiny:qwen3").path, resolve_data("gsm8k_sample"), steps=1, batch=1, seq_len=32
    )
    launch = adapter("plain").prepare(spec, directory / "scratch")
    out = directory / "capture"
    run_framework(
        launch,
        out=out,
        scratch=directory / "scratch",
        log=directory / "log",
        steps=(1,),
        time_limit_s=120.0,
        memory_limit_bytes=None,
        on_line=lambda line: None,
        cancelled=lambda: False,
    )
    return out


def do_jobs(kinds: Sequence[Kind]) -> None:
    from plumbline_web.validations.work.perform import perform

    for kind in kinds:
        job = Job.objects.get(kind=kind, state=JobState.QUEUED)
        perform(job.pk, worker="w", host=os.uname().nodename)
        job.refresh_from_db()
        assert job.state == JobState.DONE, job.error


def test_a_recorded_run_is_pushed_and_judged(client: Client, transactional_db: None, tmp_path: Path) -> None:
    user = make_user(Role.SUBMITTER, username="anna")
    out = record(tmp_path)
    files = {file.name: file.read_bytes() for file in sorted(out.iterdir()) if file.suffix != ".log"}
    headers = bearer(user)
    capture = push(client, headers, files).json()["id"]
    body = {
        "framework": "plain", "model": "tiny:qwen3", "data": "gsm8k_sample", "capture": capture,
        "settings": {"steps": 1, "batch": 1, "seq_len": 32},
        "checks": ["run.completes", "step.loss", "step.gradients", "step.accumulation"],
    }  # fmt: skip
    document = client.post(
        "/api/v1/validations", json.dumps(body), content_type="application/json", headers=headers
    ).json()
    assert document["capture"] == capture
    do_jobs([Kind.REFERENCE, Kind.JUDGE])
    validation = Validation.objects.get()
    statuses = dict(validation.results.values_list("check_name", "status"))
    assert statuses == {
        "run.completes": "pass", "step.loss": "pass", "step.gradients": "pass", "step.accumulation": "skipped",
    }  # fmt: skip
    client.force_login(user)
    page = client.get(f"/validations/V-{validation.pk}/").content.decode()
    assert "pushed by anna from 1 rank, CPU, Python" in page
    assert "pushed capture" in page
    assert os.uname().nodename not in page
    rejudge(validation, by=user)
    do_jobs([Kind.JUDGE])
    assert validation.results.filter(superseded_at__isnull=True).count() == 4
