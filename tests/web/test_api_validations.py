"""Validations over the API: submit once, read, list, cancel, retry."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.jobs.models import Job
from plumbline_web.validations.models import Validation
from tests.web.factories import (
    make_job,
    make_profile,
    make_validation,
    passing_verdicts,
    read_result,
    verdicts_with,
)
from workers.frameworks import names

pytestmark = pytest.mark.django_db

ADDRESS = "/api/v1/validations"
ASKED = {
    "framework": "transformers",
    "model": "tiny:qwen3",
    "data": "gsm8k_sample",
    "settings": {"batch": 1, "steps": 1},
}


@pytest.fixture
def user() -> User:
    return User.objects.create(username="anna", role=Role.SUBMITTER)


@pytest.fixture
def headers(user: User) -> dict[str, str]:
    _, secret = create_token(user, name="test", scopes=["read", "submit"], days=1)
    return {"Authorization": f"Bearer {secret}"}


def post(client: Client, address: str, body: Any, headers: dict[str, str]) -> Any:
    return client.post(address, json.dumps(body), content_type="application/json", headers=headers)


def test_a_submission_is_queued_once_a_key(client: Client, user: User, headers: dict[str, str]) -> None:
    keyed = headers | {"Idempotency-Key": "one"}
    first = post(client, ADDRESS, ASKED, keyed)
    again = post(client, ADDRESS, ASKED, keyed)
    in_the_body = post(client, ADDRESS, ASKED | {"idempotency_key": "one"}, headers)
    assert [first.status_code, again.status_code, in_the_body.status_code] == [201, 200, 200]
    assert first.json()["id"] == again.json()["id"] == in_the_body.json()["id"]
    assert Validation.objects.count() == 1
    found = first.json()
    assert (found["state"], found["owner"], found["settings"]) == ("queued", user.username, {"batch": 1, "steps": 1})
    assert found["spec"]["batch"] == 1
    assert "run.completes" in found["plan"]["judged"]
    assert [job["kind"] for job in found["jobs"]] == ["capture"] * len(found["plan"]["runs"])


def test_a_key_that_was_used_for_something_else_is_a_conflict(client: Client, headers: dict[str, str]) -> None:
    keyed = headers | {"Idempotency-Key": "one"}
    post(client, ADDRESS, ASKED, keyed)
    response = post(client, ADDRESS, ASKED | {"model": "tiny:llama"}, keyed)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "key_reused")
    assert Validation.objects.count() == 1


@pytest.mark.parametrize("key", ["", "x" * 101, "a\tb"])
def test_a_key_that_is_none_is_refused(client: Client, headers: dict[str, str], key: str) -> None:
    response = post(client, ADDRESS, ASKED | {"idempotency_key": key}, headers)
    assert (response.status_code, list(response.json()["error"]["fields"])) == (400, ["idempotency_key"])
    assert not Validation.objects.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "/etc"}, "model"),
        ({"data": "/etc/passwd"}, "data"),
        ({"framework": "jax"}, "framework"),
        ({"checks": ["step.nothing"]}, "checks"),
        ({"inject": "no-such-fault"}, "inject"),
        ({"settings": {"precision": "int3"}}, "settings.precision"),
        ({"queue": "tpu"}, "queue"),
        ({"time_limit_s": -1}, "time_limit_s"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_queued(
    client: Client, headers: dict[str, str], change: dict[str, Any], field: str
) -> None:
    response = post(client, ADDRESS, ASKED | change, headers)
    assert response.status_code == 400
    assert list(response.json()["error"]["fields"]) == [field]
    assert not Validation.objects.exists()
    assert not Job.objects.exists()


def test_the_list_goes_on_where_the_page_before_ended(client: Client, headers: dict[str, str], user: User) -> None:
    at = timezone.now() - timedelta(days=1)
    made = [make_validation(owner=user, state="queued", runs=False, created_at=at) for _ in range(5)]
    numbers: list[str] = []
    cursor = ""
    for _ in range(3):
        page = client.get(f"{ADDRESS}?limit=2&cursor={cursor}", headers=headers).json()
        numbers += [row["id"] for row in page["rows"]]
        cursor = page["next_cursor"]
        make_validation(owner=user, state="queued", runs=False)  # a new one moves no page
    assert numbers == [validation.number for validation in reversed(made)]
    assert cursor is None


@pytest.mark.parametrize("sort", ["newest", "oldest", "slowest", "fastest", "worst"])
def test_pages_of_every_order_are_the_whole_list(
    client: Client, headers: dict[str, str], user: User, sort: str
) -> None:
    for duration in (30.0, 10.0, 30.0, 20.0):
        make_validation(owner=user, duration_s=duration, verdicts=passing_verdicts(), runs=False)
    make_validation(owner=user, runs=False)
    whole = client.get(f"{ADDRESS}?sort={sort}", headers=headers).json()["rows"]
    paged: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = client.get(f"{ADDRESS}?sort={sort}&limit=2&cursor={cursor}", headers=headers).json()
        paged += page["rows"]
        cursor = page["next_cursor"]
    assert len(whole) == 5
    assert paged == whole


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("framework=trl", [2]),
        ("verdict=fail", [1, 0]),
        ("state=open", [3]),
        ("check=step.loss&status=inconclusive", [2]),
        ("profile=nightly@1", [1]),
        ("who=someone", [3]),
        ("text=tiny:llama", [1]),
        ("verdict=fail&sort=oldest", [0, 1]),
    ],
)
def test_the_filters_are_those_of_the_page(
    client: Client, headers: dict[str, str], user: User, query: str, expected: list[int]
) -> None:
    at, someone = timezone.now(), User.objects.create(username="someone")
    made = [
        make_validation(owner=user, created_at=at - timedelta(hours=4)),
        make_validation(owner=user, model="tiny:llama", profile=make_profile(), created_at=at - timedelta(hours=3)),
        make_validation(
            owner=user,
            framework="trl",
            verdicts=verdicts_with(step_loss="inconclusive"),
            created_at=at - timedelta(hours=2),
        ),
        make_validation(owner=someone, state="running", created_at=at - timedelta(hours=1)),
    ]
    rows = client.get(f"{ADDRESS}?{query}", headers=headers).json()["rows"]
    assert [row["id"] for row in rows] == [made[number].number for number in expected]


def test_a_list_costs_the_same_with_one_and_many(
    client: Client, headers: dict[str, str], user: User, django_assert_max_num_queries: Any
) -> None:
    for count in (1, 20):
        for _ in range(count):
            make_validation(owner=user, state="queued", runs=False)
        with django_assert_max_num_queries(6):
            client.get(ADDRESS, headers=headers)


def test_one_that_runs_says_how_far_it_is(client: Client, headers: dict[str, str], user: User) -> None:
    validation = make_validation(owner=user, state="running", created_at=timezone.now() - timedelta(seconds=9))
    run = validation.runs.order_by("pk").first()
    make_job(run=run, expected_s=20.0, detail="step 2 of 3")
    found = client.get(f"{ADDRESS}/{validation.number}", headers=headers).json()
    assert (found["state"], found["detail"], found["jobs"][0]["kind"]) == ("running", "step 2 of 3", "capture")
    assert found["elapsed_s"] == pytest.approx(8, abs=2)
    assert found["remaining_s"] is None  # nothing is known of references and judging yet
    assert found["fraction"] == 0.0


def test_the_result_is_the_document_of_the_command_line(client: Client, headers: dict[str, str], user: User) -> None:
    validation = make_validation(owner=user)
    document = client.get(f"{ADDRESS}/{validation.pk}/result", headers=headers).json()
    assert (document["schema"], document["version"], document["exit_code"]) == ("plumbline-result", 1, 1)
    assert document["verdicts"] == read_result()["verdicts"]


def test_there_is_no_result_before_the_end(client: Client, headers: dict[str, str], user: User) -> None:
    validation = make_validation(owner=user, state="running")
    response = client.get(f"{ADDRESS}/{validation.pk}/result", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "illegal_state")
    assert "wait until it is done" in response.json()["error"]["message"]


def test_cancelling_twice_changes_nothing_and_a_stale_wish_is_refused(
    client: Client, headers: dict[str, str], user: User
) -> None:
    validation = make_validation(owner=user, state="queued")
    address = f"{ADDRESS}/{validation.number}/cancel"
    ended = make_validation(owner=user, state="done")
    stale = post(client, f"{ADDRESS}/{ended.number}/cancel", {"version": ended.version + 1}, headers)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale")
    first, second = post(client, address, {}, headers), post(client, address, {}, headers)
    assert [first.json()["state"], second.json()["state"]] == ["cancelled", "cancelled"]
    assert first.json()["version"] == second.json()["version"]
    odd = post(client, address, {"version": "one"}, headers)
    assert (odd.status_code, list(odd.json()["error"]["fields"])) == (400, ["version"])


def test_a_retry_is_a_new_one_with_fresh_captures(client: Client, headers: dict[str, str], user: User) -> None:
    first = post(client, ADDRESS, ASKED, headers).json()
    assert client.post(f"{ADDRESS}/{first['id']}/retry", headers=headers).status_code == 409
    post(client, f"{ADDRESS}/{first['id']}/cancel", {}, headers)
    again = client.post(f"{ADDRESS}/{first['id']}/retry", headers=headers)
    assert again.status_code == 201
    assert (again.json()["cloned_from"], again.json()["state"]) == (first["id"], "queued")
    assert Validation.objects.get(pk=again.json()["number"]).fresh


def test_judging_again_needs_the_stored_files(client: Client, headers: dict[str, str], user: User) -> None:
    running = make_validation(owner=user, state="running")
    response = client.post(f"{ADDRESS}/{running.number}/rejudge", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "illegal_state")


def test_results_are_listed_by_their_filters(client: Client, headers: dict[str, str], user: User) -> None:
    failing = make_validation(owner=user)
    make_validation(owner=user, verdicts=passing_verdicts())
    rows = client.get("/api/v1/results?status=fail", headers=headers).json()["rows"]
    assert {row["validation"] for row in rows} == {failing.number}
    assert sorted(row["check"] for row in rows) == sorted(
        verdict["check"] for verdict in read_result()["verdicts"] if verdict["status"] == "fail"
    )
    one = client.get(f"/api/v1/results?validation={failing.number}&check=step.loss", headers=headers).json()["rows"]
    assert [(row["check"], row["validation"]) for row in one] == [("step.loss", failing.number)]
    wrong = client.get("/api/v1/results?status=broken&validation=x&limit=3", headers=headers)
    assert sorted(wrong.json()["error"]["fields"]) == ["status", "validation"]
    unknown = client.get("/api/v1/results?colour=red", headers=headers)
    assert list(unknown.json()["error"]["fields"]) == ["colour"]


def test_a_log_is_read_while_it_grows(client: Client, headers: dict[str, str], user: User) -> None:
    validation = make_validation(owner=user, state="running")
    job = make_job(run=validation.runs.first(), lines=["loading", "step 1 <b>"])
    response = client.get(f"/api/v1/jobs/{job.pk}/log", headers=headers)
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.getvalue().decode() == "loading\nstep 1 <b>\n"


def test_the_catalogue_says_what_can_be_asked_for(client: Client, headers: dict[str, str], user: User) -> None:
    frameworks = client.get("/api/v1/frameworks", headers=headers).json()
    assert {each["name"] for each in frameworks} == set(names())
    assert {each["name"] for each in frameworks if each["installed"]} == {"command", "plain", "transformers", "trl"}
    checks = client.get("/api/v1/checks", headers=headers).json()
    assert "step.loss" in {each["name"] for each in checks}
    make_validation(owner=user, runs=False)
    models = client.get("/api/v1/models", headers=headers).json()
    assert [(each["name"], each["family"]) for each in models] == [("tiny:qwen3", "qwen3")]
