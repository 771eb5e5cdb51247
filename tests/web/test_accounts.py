"""Links, people and visits: the rules."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from plumbline_web.accounts.domain import (
    InvalidLink,
    Refused,
    activate,
    authenticate_token,
    create_first_administrator_link,
    create_link,
    create_token,
    deactivate,
    find_link,
    invite,
    set_password,
    set_role,
    sign_in_with,
)
from plumbline_web.accounts.enums import Role
from plumbline_web.accounts.models import SignInLink, User
from plumbline_web.accounts.tokens import InvalidToken
from plumbline_web.accounts.visits import note_visit
from plumbline_web.timeline.models import Event, Subject

pytestmark = pytest.mark.django_db


def make_user(name: str, role: Role) -> User:
    return User.objects.create_user(name, role=role)


@pytest.fixture
def administrator() -> User:
    return make_user("chief", Role.ADMINISTRATOR)


def events_of(user: User) -> list[tuple[str, str | None]]:
    events = Event.objects.filter(subject=Subject.USER, subject_id=user.pk).order_by("pk").select_related("actor")
    return [(event.text, event.actor.username if event.actor else None) for event in events]


def test_the_first_administrator_is_made_and_signs_in_by_link() -> None:
    secret = create_first_administrator_link()
    assert secret is not None
    user = sign_in_with(secret)
    assert (user.username, user.role, user.has_usable_password()) == ("admin", Role.ADMINISTRATOR, False)
    assert create_first_administrator_link() is None


def test_a_second_start_makes_a_new_link_and_ends_the_first() -> None:
    first, second = create_first_administrator_link(), create_first_administrator_link()
    assert first is not None
    assert second is not None
    assert User.objects.count() == 1
    with pytest.raises(InvalidLink, match="because a newer one was made"):
        sign_in_with(first)
    assert sign_in_with(second).username == "admin"


def test_an_existing_administrator_who_never_signed_in_gets_the_link(administrator: User) -> None:
    secret = create_first_administrator_link()
    assert secret is not None
    assert sign_in_with(secret) == administrator


def test_a_link_is_used_once_and_looking_at_it_does_not_use_it(administrator: User) -> None:
    secret = create_link(administrator, by=administrator)
    assert find_link(secret).user == find_link(secret).user == administrator
    assert sign_in_with(secret) == administrator
    with pytest.raises(InvalidLink, match="was used on"):
        sign_in_with(secret)


def test_a_link_ends_after_24_hours(administrator: User) -> None:
    secret = create_link(administrator, by=None)
    link = SignInLink.objects.get()
    assert timedelta(hours=23, minutes=59) < link.expires_at - timezone.now() <= timedelta(hours=24)
    SignInLink.objects.update(expires_at=timezone.now())
    with pytest.raises(InvalidLink, match="ended on"):
        sign_in_with(secret)


def test_only_the_digest_of_a_link_is_kept(administrator: User) -> None:
    secret = create_link(administrator, by=None)
    link = SignInLink.objects.get()
    assert secret not in str(link.__dict__)
    assert len(link.digest) == 64


@pytest.mark.parametrize("secret", ["", "wrong", "ä" * 50, "\udcff", "x" * 10_000])
def test_an_unknown_link_signs_nobody_in(secret: str) -> None:
    with pytest.raises(InvalidLink, match="unknown"):
        sign_in_with(secret)


def test_an_invited_person_has_the_role_and_no_password(administrator: User) -> None:
    user, secret = invite("anna", role=Role.TRIAGER, by=administrator)
    assert sign_in_with(secret) == user
    assert (user.role, user.has_usable_password()) == (Role.TRIAGER, False)
    assert events_of(user) == [
        ("invited as triager", "chief"),
        ("got a sign-in link", "chief"),
        ("signed in by link", "anna"),
    ]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("", "blank"), ("two words", "valid username"), ("CHIEF", "is an account CHIEF already"), ("n" * 151, "150")],
)
def test_a_wrong_name_is_refused_beside_its_field(administrator: User, name: str, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        invite(name, role=Role.VIEWER, by=administrator)
    assert refused.value.field == "username"
    assert User.objects.count() == 1


def test_a_role_change_is_on_the_timeline(administrator: User) -> None:
    user = make_user("ben", Role.VIEWER)
    set_role(user, role=Role.SUBMITTER, by=administrator)
    set_role(user, role=Role.SUBMITTER, by=administrator)
    assert User.objects.get(pk=user.pk).role == Role.SUBMITTER
    assert events_of(user) == [("role changed from viewer to submitter", "chief")]


def test_the_last_administrator_stays_one(administrator: User) -> None:
    for change in (
        lambda: set_role(administrator, role=Role.TRIAGER, by=administrator),
        lambda: deactivate(administrator, by=administrator),
    ):
        with pytest.raises(Refused, match="chief is the last administrator") as refused:
            change()
        assert refused.value.code == "illegal_state"
    second = make_user("second", Role.ADMINISTRATOR)
    set_role(administrator, role=Role.TRIAGER, by=second)
    assert User.objects.get(pk=administrator.pk).role == Role.TRIAGER


def test_a_deactivated_administrator_does_not_count_as_one_that_stays(administrator: User) -> None:
    second = make_user("second", Role.ADMINISTRATOR)
    deactivate(second, by=administrator)
    with pytest.raises(Refused, match="last administrator"):
        deactivate(administrator, by=administrator)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER, Role.TRIAGER])
def test_only_administrators_change_accounts(administrator: User, role: Role) -> None:
    someone = make_user("someone", role)
    for change in (
        lambda: invite("new", role=Role.VIEWER, by=someone),
        lambda: set_role(someone, role=Role.ADMINISTRATOR, by=someone),
        lambda: deactivate(administrator, by=someone),
        lambda: activate(administrator, by=someone),
        lambda: create_link(administrator, by=someone),
    ):
        with pytest.raises(Refused, match="administrator") as refused:
            change()
        assert refused.value.code == "forbidden"


def test_deactivating_ends_links_and_tokens_and_activating_brings_neither_back(administrator: User) -> None:
    user, link = invite("anna", role=Role.SUBMITTER, by=administrator)
    _, token = create_token(user, name="ci", scopes=["read"], days=1)
    deactivate(user, by=administrator)
    with pytest.raises(InvalidLink):
        sign_in_with(link)
    with pytest.raises(InvalidToken, match="revoked"):
        authenticate_token(token)
    with pytest.raises(Refused, match="activate the account first"):
        create_link(user, by=administrator)
    activate(user, by=administrator)
    with pytest.raises(InvalidLink):
        sign_in_with(link)
    assert sign_in_with(create_link(user, by=administrator)) == user


def test_a_password_replaces_another_only_with_the_current_one(administrator: User) -> None:
    set_password(administrator, "plumb line and level")
    with pytest.raises(Refused, match="current password is wrong") as refused:
        set_password(administrator, "another long sentence", current="wrong")
    assert refused.value.field == "current"
    set_password(administrator, "another long sentence", current="plumb line and level")
    assert User.objects.get(pk=administrator.pk).check_password("another long sentence")


@pytest.mark.parametrize("weak", ["", "short", "password1234"])
def test_a_weak_password_is_refused(administrator: User, weak: str) -> None:
    with pytest.raises(Refused) as refused:
        set_password(administrator, weak)
    assert refused.value.field == "password"
    assert not User.objects.get(pk=administrator.pk).has_usable_password()


def test_a_visit_begins_after_thirty_minutes_of_silence(administrator: User) -> None:
    note_visit(administrator)
    assert administrator.visited_at is None
    earlier = timezone.now() - timedelta(minutes=31)
    User.objects.update(seen_at=earlier)
    administrator.refresh_from_db()
    note_visit(administrator)
    assert administrator.visited_at == earlier
    assert administrator.seen_at is not None
    assert administrator.seen_at > earlier


def test_a_visit_goes_on_within_thirty_minutes(administrator: User) -> None:
    visited = timezone.now() - timedelta(days=1)
    User.objects.update(seen_at=timezone.now() - timedelta(minutes=29), visited_at=visited)
    administrator.refresh_from_db()
    note_visit(administrator)
    assert administrator.visited_at == visited


def test_a_page_a_second_is_one_write_a_minute(administrator: User, django_assert_num_queries: object) -> None:
    note_visit(administrator)
    with django_assert_num_queries(0):  # type: ignore[operator]
        note_visit(administrator)
