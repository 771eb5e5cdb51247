"""Every error of the API has one shape, whoever asks and whatever they send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client

from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import User
from plumbline_web.accounts.tokens import create_token
from plumbline_web.api.errors import translate
from tests.web.factories import make_validation

pytestmark = pytest.mark.django_db

V1 = "/api/v1"


@pytest.fixture
def user() -> User:
    return User.objects.create(username="anna", role=Role.SUBMITTER)


@pytest.fixture
def bearer(user: User) -> dict[str, str]:
    _, secret = create_token(user, name="test", scopes=["read", "submit", "upload"], days=1)
    return {"Authorization": f"Bearer {secret}"}


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert list(body) == ["error"]
    assert sorted(body["error"]) == ["code", "fields", "message"]
    assert body["error"]["message"].endswith((".", "…")) or body["error"]["fields"]
    error: dict[str, Any] = body["error"]
    return error


def test_a_stranger_is_told_to_send_a_token(client: Client) -> None:
    response = client.get(f"{V1}/validations")
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="plumbline"'
    assert error_of(response)["code"] == "unauthenticated"


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer", "Basic YTpi", "", "Bearer \u00e9"])
def test_a_wrong_header_is_no_token_even_in_a_session(client: Client, user: User, header: str) -> None:
    client.force_login(user)
    response = client.get(f"{V1}/validations", headers={"Authorization": header})
    assert response.status_code == 401
    assert error_of(response)["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "address",
    [
        "/nothing",
        "/validations/V-999999",
        "/validations/V-0",
        "/validations/x",
        "/jobs/7/log",
        "/captures/7",
        "/captures/uploads/..%2f..",
        "/validations/V-٣",
    ],
)
def test_what_is_not_there_is_404_in_the_one_shape(client: Client, bearer: dict[str, str], address: str) -> None:
    response = client.get(f"{V1}{address}", headers=bearer)
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


def test_a_wrong_method_names_the_right_ones(client: Client, bearer: dict[str, str]) -> None:
    response = client.put(f"{V1}/validations", headers=bearer)
    assert (response.status_code, response.headers["Allow"]) == (405, "GET, POST")
    assert "use GET, POST" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "is no JSON"),
        (b"[1]", "is a JSON list"),
        (b"null", "is a JSON NoneType"),
        (b"\xff\xfe", "is no JSON"),
        (b'{"framework": NaN}', "NaN is no JSON number"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_body_that_is_no_object_is_400(client: Client, bearer: dict[str, str], body: bytes, sentence: str) -> None:
    response = client.post(f"{V1}/validations", body, content_type="application/json", headers=bearer)
    assert response.status_code == 400
    assert sentence in error_of(response)["message"]


def test_a_hundred_megabytes_are_413_before_they_are_read(client: Client, bearer: dict[str, str]) -> None:
    body = b'{"data": "' + b"x" * 100_000_000 + b'"}'
    response = client.post(f"{V1}/validations", body, content_type="application/json", headers=bearer)
    assert response.status_code == 413
    assert error_of(response)["code"] == "too_large"


def test_every_wrong_field_is_named_at_once(client: Client, bearer: dict[str, str]) -> None:
    body = {"framework": 3, "model": "", "data": "x" * 600, "settings": {"batch": "none", "colour": 1}, "colour": "red"}
    response = client.post(f"{V1}/validations", body, content_type="application/json", headers=bearer)
    assert response.status_code == 400
    fields = error_of(response)["fields"]
    assert sorted(fields) == ["colour", "data", "framework", "model", "settings.batch", "settings.colour"]
    assert (
        fields["settings.batch"]
        == "'none' is not a whole number; give a whole number, 1 or more and at most 2147483647"
    )


@pytest.mark.parametrize(
    "query",
    [
        "framwork=trl",
        "verdict=broken",
        "cursor=x",
        "cursor=e30",
        "limit=0",
        "limit=x",
        "limit=501",
        "since=2026-02-30",
    ],
)
def test_a_wrong_filter_never_gives_the_unfiltered_list(
    client: Client, user: User, bearer: dict[str, str], query: str
) -> None:
    make_validation(owner=user, state="queued", runs=False)
    response = client.get(f"{V1}/validations?{query}", headers=bearer)
    assert response.status_code == 400
    assert list(error_of(response)["fields"]) == [query.partition("=")[0]]


def test_a_session_needs_the_csrf_token_to_change_something(user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get(f"{V1}/me").json()["username"] == user.username
    response = client.post(f"{V1}/tokens", json.dumps({"name": "a"}), content_type="application/json")
    assert response.status_code == 403
    assert "CSRF" in error_of(response)["message"]
    client.get("/account/")
    token = client.cookies["csrftoken"].value
    response = client.post(
        f"{V1}/tokens",
        json.dumps({"name": "from a page", "scopes": ["read"], "days": 1}),
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    assert response.status_code == 201


def test_a_fault_of_plumbline_says_nothing_of_its_inside(client: Client, user: User, bearer: dict[str, str]) -> None:
    validation = make_validation(owner=user, state="running")
    type(validation).objects.filter(pk=validation.pk).update(plan=["of no version"])
    response = client.get(f"{V1}/validations/{validation.number}", headers=bearer)
    assert response.status_code == 500
    error = error_of(response)
    assert (error["code"], "AttributeError" in error["message"]) == ("internal", False)


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_that_is_away_is_503_which_clients_try_again(kind: type[Exception]) -> None:
    error = translate(kind("server closed the connection unexpectedly"))
    assert (error.status, error.code) == (503, "unavailable")
    assert str(error) == "The database does not answer, and nothing was changed; send it again in a moment."
