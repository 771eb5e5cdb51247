"""Signing in: by link, by password, and what guessing meets."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from plumbline_web.accounts.domain import create_link
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import SignInLink, User

pytestmark = pytest.mark.django_db

PASSWORD = "plumb line and level"


@pytest.fixture
def user() -> User:
    """A name of its own each time: wrong passwords are counted in Redis, which no test rolls back."""
    return User.objects.create_user(f"anna-{uuid.uuid4().hex[:8]}", password=PASSWORD, role=Role.SUBMITTER)


@pytest.fixture
def client(client: Client) -> Client:
    """From an address of its own, for the same reason."""
    digits = uuid.uuid4().int
    client.defaults["REMOTE_ADDR"] = f"10.{digits % 256}.{digits // 256 % 256}.{digits // 65536 % 256}"
    return client


def sign_in(client: Client, name: str, password: str, **more: str) -> tuple[int, str]:
    response = client.post("/sign-in/", {"username": name, "password": password, **more})
    return response.status_code, response.headers.get("Location", "") or response.content.decode()


def test_opening_a_link_uses_nothing_and_the_button_signs_in(client: Client, user: User) -> None:
    secret = create_link(user, by=None)
    for _ in range(2):
        page = client.get(f"/sign-in/{secret}/")
        assert page.status_code == 200
        assert f"Sign in as {user.username}" in page.content.decode()
        assert "no-store" in page.headers["Cache-Control"]
    assert client.head(f"/sign-in/{secret}/").status_code == 200
    assert "_auth_user_id" not in client.session
    signed = client.post(f"/sign-in/{secret}/")
    assert (signed.status_code, signed.headers["Location"]) == (302, "/")
    assert client.session["_auth_user_id"] == str(user.pk)
    again = client.post(f"/sign-in/{secret}/")
    assert again.status_code == 410
    assert "was used on" in again.content.decode()


def test_who_has_no_password_is_led_to_set_one(client: Client) -> None:
    newcomer = User.objects.create_user("newcomer")
    signed = client.post(f"/sign-in/{create_link(newcomer, by=None)}/")
    assert signed.headers["Location"] == "/account/"
    page = client.get("/account/").content.decode()
    assert "You have no password yet" in page
    assert "Current password" not in page
    client.post("/account/", {"password": PASSWORD})
    newcomer.refresh_from_db()
    assert newcomer.check_password(PASSWORD)
    assert client.get("/account/").status_code == 200  # still signed in


def test_an_expired_and_an_unknown_link_say_so(client: Client, user: User) -> None:
    secret = create_link(user, by=None)
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    expired, unknown = client.get(f"/sign-in/{secret}/"), client.get("/sign-in/nothing/")
    assert [expired.status_code, unknown.status_code] == [410, 410]
    assert "ended on" in expired.content.decode()
    assert "is unknown" in unknown.content.decode()


def test_a_link_signs_in_its_own_person_in_a_strangers_session(client: Client, user: User) -> None:
    client.force_login(User.objects.create(username="stranger"))
    client.post(f"/sign-in/{create_link(user, by=None)}/")
    assert client.session["_auth_user_id"] == str(user.pk)


def test_the_right_password_leads_where_one_wanted_to_go(client: Client, user: User) -> None:
    assert client.get("/account/").headers["Location"] == "/sign-in/?next=/account/"
    assert 'value="/account/"' in client.get("/sign-in/?next=/account/").content.decode()
    assert sign_in(client, user.username, PASSWORD, next="/account/") == (302, "/account/")


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "/\\evil.example"]
)
def test_nobody_is_led_to_another_site(client: Client, user: User, target: str) -> None:
    assert sign_in(client, user.username, PASSWORD, next=target) == (302, "/")


def test_a_wrong_name_and_a_wrong_password_look_the_same(client: Client, user: User) -> None:
    sentence = "The name or the password is wrong"
    for name, password in ((user.username, "wrong"), ("nobody", PASSWORD), (user.username, "x" * 200)):
        status, text = sign_in(client, name, password)
        assert status == 200
        assert sentence in text


def test_a_deactivated_person_does_not_sign_in_and_a_session_ends(client: Client, user: User) -> None:
    client.force_login(user)
    User.objects.update(is_active=False)
    assert client.get("/account/").status_code == 302
    assert "is wrong" in sign_in(client, user.username, PASSWORD)[1]


def test_guessing_one_persons_password_has_to_wait(client: Client, user: User) -> None:
    for _ in range(5):
        assert sign_in(client, user.username, "wrong")[0] == 200
    status, text = sign_in(client, user.username, PASSWORD)
    assert status == 429
    assert "Too many wrong passwords; wait 15 minutes" in text
    elsewhere = Client(REMOTE_ADDR="192.0.2.7")
    assert sign_in(elsewhere, user.username, PASSWORD) == (302, "/")  # nobody is locked out from elsewhere


def test_trying_one_password_on_many_names_has_to_wait(client: Client) -> None:
    for number in range(30):
        assert sign_in(client, f"name-{number}", "wrong")[0] == 200
    assert sign_in(client, "another", "wrong")[0] == 429


def test_a_right_password_forgets_the_wrong_ones(client: Client, user: User) -> None:
    for _ in range(4):
        sign_in(client, user.username, "wrong")
    assert sign_in(client, user.username, PASSWORD)[0] == 302
    client.post("/sign-out/")
    assert sign_in(client, user.username, "wrong")[0] == 200


def test_signing_out_takes_a_post(client: Client, user: User) -> None:
    client.force_login(user)
    assert client.get("/sign-out/").status_code == 405
    assert client.post("/sign-out/").headers["Location"] == "/sign-in/"
    assert "_auth_user_id" not in client.session


def test_an_administrator_invites_and_shows_the_link_once(client: Client) -> None:
    client.force_login(User.objects.create(username="chief", role=Role.ADMINISTRATOR))
    page = client.post("/users/", {"username": "newcomer", "role": "triager"}).content.decode()
    link = page.split('<code class="secret" tabindex="0">')[1].split("<")[0]
    assert link.startswith("http://testserver/sign-in/")
    assert link not in client.get("/users/").content.decode()
    other = Client()
    other.post(link.removeprefix("http://testserver"))
    newcomer = User.objects.get(username="newcomer")
    assert other.session["_auth_user_id"] == str(newcomer.pk)
    assert newcomer.role == Role.TRIAGER


def test_the_users_page_says_what_is_refused(client: Client) -> None:
    chief = User.objects.create(username="chief", role=Role.ADMINISTRATOR)
    client.force_login(chief)
    page = client.post("/users/", {"username": "Chief", "role": "viewer"}).content.decode()
    assert "There is an account Chief already" in page
    page = client.post(f"/users/{chief.pk}/deactivate/", follow=True).content.decode()
    assert "chief is the last administrator; make another one first." in page
    page = client.post(f"/users/{chief.pk}/role/", {"role": "emperor"}, follow=True).content.decode()
    assert "There is no such role" in page
    chief.refresh_from_db()
    assert (chief.is_active, chief.role) == (True, Role.ADMINISTRATOR)
