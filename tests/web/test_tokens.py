"""Tokens: shown once, kept as digests, bound to scopes, roles and time."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from plumbline_web.accounts.domain import InvalidToken, Refused, authenticate_token, create_token, revoke_token
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import Token, User
from plumbline_web.accounts.tokens import MOST_TOKENS
from plumbline_web.timeline.models import Event, Subject

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    return User.objects.create(username="anna", role=Role.SUBMITTER)


def test_a_token_opens_what_its_owner_made_it_for(user: User) -> None:
    token, secret = create_token(user, name="ci", scopes=["submit", "read"], days=30)
    assert secret.startswith("plb_")
    assert (token.hint, token.scopes) == (secret[:10], ["read", "submit"])
    assert secret not in str(token.__dict__)
    assert authenticate_token(secret) == token
    assert Event.objects.get(subject=Subject.TOKEN, subject_id=token.pk).text == "made, for read, submit"


def test_its_use_is_noted_once_a_minute(user: User, django_assert_num_queries: object) -> None:
    token, secret = create_token(user, name="ci", scopes=["read"], days=30)
    authenticate_token(secret)
    first = Token.objects.get(pk=token.pk).used_at
    assert first is not None
    authenticate_token(secret)
    assert Token.objects.get(pk=token.pk).used_at == first
    Token.objects.update(used_at=first - timedelta(minutes=2))
    authenticate_token(secret)
    assert Token.objects.get(pk=token.pk).used_at >= first


def test_a_revoked_an_expired_and_an_unknown_one_say_why(user: User) -> None:
    token, secret = create_token(user, name="ci", scopes=["read"], days=1)
    with pytest.raises(InvalidToken, match="unknown"):
        authenticate_token(secret + "x")
    Token.objects.update(expires_at=timezone.now())
    with pytest.raises(InvalidToken, match="expired on"):
        authenticate_token(secret)
    revoke_token(token, by=user)
    with pytest.raises(InvalidToken, match="was revoked"):
        authenticate_token(secret)


def test_a_token_of_someone_who_was_deactivated_is_dead(user: User) -> None:
    _, secret = create_token(user, name="ci", scopes=["read"], days=1)
    User.objects.update(is_active=False)
    with pytest.raises(InvalidToken, match="anna is deactivated"):
        authenticate_token(secret)


@pytest.mark.parametrize(
    ("name", "scopes", "days", "field"),
    [
        ("", ["read"], 1, "name"),
        ("x" * 101, ["read"], 1, "name"),
        ("a\0b", ["read"], 1, "name"),
        ("ci", [], 1, "scopes"),
        ("ci", ["root"], 1, "scopes"),
        ("ci", ["read"], 0, "days"),
        ("ci", ["read"], 366, "days"),
    ],
)
def test_a_wrong_wish_names_its_field(user: User, name: str, scopes: list[str], days: int, field: str) -> None:
    with pytest.raises(Refused) as refused:
        create_token(user, name=name, scopes=scopes, days=days)
    assert (refused.value.code, refused.value.field) == ("invalid", field)
    assert not Token.objects.exists()


def test_a_viewers_token_only_reads() -> None:
    viewer = User.objects.create(username="vera", role=Role.VIEWER)
    with pytest.raises(Refused, match="needs the role submitter, and you are viewer"):
        create_token(viewer, name="ci", scopes=["read", "submit"], days=1)
    assert create_token(viewer, name="ci", scopes=["read"], days=1)[0].scopes == ["read"]


def test_a_token_loses_what_its_owner_loses(client: Client, user: User) -> None:
    _, secret = create_token(user, name="ci", scopes=["submit"], days=1)
    User.objects.update(role=Role.VIEWER)
    response = client.post("/api/v1/validations", headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == 403
    assert response.json()["error"]["message"] == (
        "This needs the role submitter, and you are viewer; ask an administrator."
    )


def test_a_scope_does_not_open_another(client: Client, user: User) -> None:
    _, secret = create_token(user, name="ci", scopes=["upload"], days=1)
    response = client.get("/api/v1/validations", headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == 403
    assert response.json()["error"]["message"] == (
        "The token has the scopes upload, and this needs read; make another one."
    )


def test_one_has_at_most_fifty_valid_tokens(user: User) -> None:
    soon = timezone.now() + timedelta(days=1)
    Token.objects.bulk_create(
        Token(user=user, name="n", hint="h", digest=f"{number:064}", scopes=["read"], expires_at=soon)
        for number in range(MOST_TOKENS)
    )
    with pytest.raises(Refused, match="50 valid tokens"):
        create_token(user, name="one more", scopes=["read"], days=1)
    Token.objects.filter(digest=f"{0:064}").update(expires_at=timezone.now())
    create_token(user, name="one more", scopes=["read"], days=1)


def test_only_its_owner_or_an_administrator_revokes_a_token(user: User) -> None:
    token, _ = create_token(user, name="ci", scopes=["read"], days=1)
    with pytest.raises(Refused, match="belongs to someone else"):
        revoke_token(token, by=User.objects.create(username="ben", role=Role.TRIAGER))
    chief = User.objects.create(username="chief", role=Role.ADMINISTRATOR)
    revoke_token(token, by=chief)
    revoke_token(token, by=chief)
    assert token.revoked_at is not None
    assert Event.objects.filter(subject=Subject.TOKEN, text="revoked").count() == 1


def test_a_session_makes_tokens_and_a_token_makes_none(client: Client, user: User) -> None:
    _, secret = create_token(user, name="ci", scopes=["read", "submit", "upload"], days=1)
    body = json.dumps({"name": "child", "scopes": ["read"], "days": 365})
    stolen = client.post(
        "/api/v1/tokens", body, content_type="application/json", headers={"Authorization": f"Bearer {secret}"}
    )
    assert stolen.status_code == 401
    client.force_login(user)
    made = client.post("/api/v1/tokens", body, content_type="application/json")
    assert made.status_code == 201
    assert authenticate_token(made.json()["secret"]).name == "child"
    listed = client.get("/api/v1/tokens").json()
    assert [each["name"] for each in listed] == ["child", "ci"]
    assert all("secret" not in each for each in listed)


def test_a_token_revokes_itself_and_no_other(client: Client, user: User) -> None:
    token, secret = create_token(user, name="ci", scopes=["read"], days=1)
    other, _ = create_token(user, name="other", scopes=["read"], days=1)
    headers = {"Authorization": f"Bearer {secret}"}
    assert client.delete(f"/api/v1/tokens/{other.pk}", headers=headers).status_code == 404
    assert client.delete(f"/api/v1/tokens/{token.pk}", headers=headers).json()["revoked_at"] is not None
    assert client.get("/api/v1/me", headers=headers).status_code == 401


def test_every_wrong_field_of_a_new_token_is_named(client: Client, user: User) -> None:
    client.force_login(user)
    response = client.post("/api/v1/tokens", json.dumps({"name": 3, "days": True}), content_type="application/json")
    assert (response.status_code, sorted(response.json()["error"]["fields"])) == (400, ["days", "name", "scopes"])


def test_the_account_page_shows_a_secret_once(client: Client, user: User) -> None:
    client.force_login(user)
    made = client.post("/account/tokens/", {"name": "<ci>", "scopes": ["read", "submit"], "days": "7"})
    token = Token.objects.get()
    text = made.content.decode()
    secret = text.split('<code class="secret" tabindex="0">')[1].split("<")[0]
    assert authenticate_token(secret) == token
    assert "&lt;ci&gt;" in text
    assert "no-store" in made.headers["Cache-Control"]
    assert secret not in client.get("/account/").content.decode()
    client.post(f"/account/tokens/{token.pk}/revoke/")
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_a_strangers_token_is_not_there_on_the_account_page(client: Client, user: User) -> None:
    token, _ = create_token(user, name="ci", scopes=["read"], days=1)
    client.force_login(User.objects.create(username="chief", role=Role.ADMINISTRATOR))
    assert client.post(f"/account/tokens/{token.pk}/revoke/").status_code == 404
